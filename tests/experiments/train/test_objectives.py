"""Kinds of training: two that only this file knows, through the ordinary loop, and subwords, through the command."""

import json
import math
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from experiments import load
from experiments.cli import main
from experiments.config import Config
from experiments.data.corpus import corpus_of_text
from experiments.data.registry import DATA_SETS, load_corpus
from experiments.records import environment
from experiments.records.record import read_comparison
from experiments.records.schema import ANSWERS, NEXT_BYTE
from experiments.run.job import train_directory
from experiments.train.chosen_objective import make_objective
from experiments.train.loop import evaluate, train_run
from experiments.train.models import build_model
from experiments.train.objectives import Metric, Objective
from experiments.train.subwords import SubwordTokenizer
from experiments.variants import Variant, get_variant
from linear_rope import Encoder, LinearRoPEAttention
from linear_rope.attention.registry import ATTENTIONS
from linear_rope.blocks import initialise
from tests.made_up import DATA, make_record, metrics_rows

CPU = torch.device("cpu")
CONFIG = Config(
    **{"layers": 1, "dim": 32, "heads": 2, "num_features": 16, "context": 16, "batch_size": 16, "steps": 60},
    **{"warmup_steps": 5, "log_every": 20, "evaluate_every": 30, "evaluation_windows": 64, "test_windows": 64},
    **{"learning_rate": 1e-2, "diagnose_windows": 2},
)
TEXT = ("the linear attention rotates — " * 400).encode()


class Classifier(nn.Module):
    """Scores of ``classes`` for each sequence: the mean of an encoder's representations, and a matrix."""

    def __init__(self, config, classes):
        super().__init__()
        self.encoder, self.head = Encoder(config), nn.Linear(config.dim, classes)
        initialise(self, config)

    def forward(self, tokens):
        return self.head(self.encoder(tokens).mean(dim=1))


class Classification(Objective):
    """Which of two tokens is there more often?"""

    name, vocabulary, length = "classification", 8, 15
    primary = Metric("accuracy", "share of sequences", "higher")

    def batch(self, seed, step, count=CONFIG.batch_size):
        tokens = np.random.default_rng([seed, step]).integers(0, 2, (count, self.length))
        return torch.from_numpy(tokens), torch.from_numpy((tokens.mean(1) > 0.5).astype(np.int64))

    def windows(self, split, count):
        return self.batch({"validation": 10**6, "test": 10**6 + 1}[split], 0, count)

    def model(self, config, attention):
        return Classifier(config, classes=2)

    def logits(self, model, batch):
        return model(batch[0]).float()

    def loss(self, model, batch):
        return F.cross_entropy(self.logits(model, batch), batch[-1])

    def tally(self, model, batch):
        logits = self.logits(model, batch)
        right = (logits.argmax(-1) == batch[-1]).sum().item()
        return {"right": right, "nats": F.cross_entropy(logits, batch[-1], reduction="sum").item(), "n": len(logits)}

    def metrics(self, sums):
        return {"accuracy": sums["right"] / sums["n"], "loss": sums["nats"] / sums["n"]}


class Pairs(Classification):
    """Do two texts begin with the same token? Both go through one encoder."""

    name = "pairs of texts"

    def batch(self, seed, step, count=CONFIG.batch_size):
        generator = np.random.default_rng([seed, step])
        first, second = generator.integers(0, 2, (2, count, 1)) + np.zeros((1, 1, self.length), dtype=np.int64)
        return torch.from_numpy(first), torch.from_numpy(second), torch.from_numpy((first == second)[:, 0].astype(int))

    def model(self, config, attention):
        return Classifier(config, classes=config.dim)

    def logits(self, model, batch):
        one, other = model(batch[0]), model(batch[1])
        same = 4 - (one - other).abs().sum(-1).float()
        return torch.stack((-same, same), dim=-1)


@pytest.mark.parametrize("objective", [Classification(), Pairs()], ids=lambda objective: objective.name)
@pytest.mark.parametrize("variant", ["softmax-learned", "favor+-rope-after"])
def test_another_kind_of_training_goes_through_the_ordinary_loop(tmp_path, objective, variant):
    train_run(tmp_path, get_variant(variant), 0, CONFIG, objective, CPU)
    rows = metrics_rows(tmp_path / "metrics.jsonl")
    of_split = {split: [row for row in rows if row["split"] == split] for split in ("train", "validation", "test")}
    assert not any("bits_per_byte" in row for row in rows)
    assert of_split["validation"][-1]["loss"] < of_split["validation"][0]["loss"] / 2
    assert of_split["train"][-1]["loss"] < of_split["train"][0]["loss"]
    assert of_split["test"][0]["accuracy"] > 0.9
    assert objective.describe().better == "higher"


PLUGIN = """
from experiments.data.corpus import DataSet, corpus_of_text
from experiments.data.registry import DATA_SETS
from tests.experiments.train.test_objectives import Classification

def load(data_dir, data_file):
    return corpus_of_text("more-often", bytes(range(100)), "drawn", "Not a text.")

mine = DataSet("more-often", "Which token?", load, objective=lambda corpus, config: Classification())
DATA_SETS.add("more-often", mine, module=__name__)
"""


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.slow
def test_a_data_set_of_ones_own_brings_its_objective_to_a_comparison(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(DATA_SETS, "_items", dict(DATA_SETS._items))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "an_objective_of_mine.py").write_text(PLUGIN)
    out = tmp_path / "out"
    command = "run convergence --preset smoke --plugin an_objective_of_mine --data more-often --steps 30 --context 16"
    assert main([*command.split(), "--variants", "softmax-learned,favor+-rope-after", "--out", str(out)]) == 0
    record = read_comparison(out)
    assert (record.objective.name, record.objective.unit) == ("classification", "share of sequences")
    assert [origin.module for origin in record.plugins] == ["an_objective_of_mine"]
    run = out / "favor+-rope-after/seed0"
    (test,) = [row for row in metrics_rows(run / "metrics.jsonl") if row["split"] == "test"]
    assert test.keys() == {"step", "tokens", "split", "accuracy", "loss"}
    assert "share of sequences" in (out / "report.md").read_text()
    assert "accuracy" in capsys.readouterr().out

    # The trained model is the objective's own, and not asked for text.
    trained = load(out).run("favor+-rope-after")
    assert (
        evaluate(trained.model(), Classification(), "test", record.config["test_windows"], CONFIG)["accuracy"]
        == test["accuracy"]
    )
    with pytest.raises(ValueError, match="was trained for 'classification' and continues no text"):
        trained.generate("a")
    # Progress has the unit of the objective's loss.
    shutil.rmtree(run / "checkpoint")
    (run / "metrics.jsonl").unlink()
    assert train_directory(run) == 0
    assert re.search(r"step 30/30, loss [0-9.]+ nats, [0-9,]+ tokens/s", capsys.readouterr().out)


class Own(LinearRoPEAttention):
    """A kernel that this file alone knows."""

    def __init__(self, dim, heads, *, causal=False, rope="none", seed=0):
        super().__init__(dim, heads, feature_map="relu", causal=causal, rope=rope, seed=seed)


def test_a_kernel_of_one_s_own_is_trained_by_its_name(tmp_path, next_byte, monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "own", Own)
    objective = next_byte(CONFIG)
    variant = Variant("own-rope-after", "own", "rope-after", "own-rope-after", "")
    assert isinstance(build_model(variant, CONFIG, 0, objective).blocks[0].attention, Own)
    train_run(tmp_path, variant, 0, CONFIG, objective, CPU)
    with pytest.raises(ValueError, match="attention is 'nothing'"):
        build_model(replace(variant, kernel="nothing"), CONFIG, 0, objective)


def test_records_say_what_was_trained_and_old_ones_are_told_by_their_data():
    assert make_objective(load_corpus("recall-64"), Config(context=64)).describe() == ANSWERS
    assert make_objective(corpus_of_text("text", TEXT, "", ""), CONFIG).describe() == NEXT_BYTE
    assert make_record().objective == NEXT_BYTE
    for name in ("recall-64", "copying-128"):
        assert make_record(data=[DATA | {"name": name}]).objective == ANSWERS


class TestSubwords:
    CONTENT = np.frombuffer(TEXT + bytes(range(256)), dtype=np.uint8)

    @pytest.fixture(autouse=True)
    def _cache(self, monkeypatch, tmp_path):
        monkeypatch.setenv("LINEAR_ROPE_CACHE", str(tmp_path / "cache"))

    def test_equal_texts_give_equal_tokenizers_and_any_bytes_come_back(self, tmp_path):
        first, second = (SubwordTokenizer.train(self.CONTENT, 300) for _ in range(2))
        assert first.json == second.json
        # A text that begins and ends inside a character of UTF-8.
        for content in (self.CONTENT, self.CONTENT[29:200], self.CONTENT[:0]):
            tokens = first.encode(content)
            assert first.decode(tokens) == content.tobytes()
            (kept,) = [path for path in tmp_path.rglob("*.npy") if len(np.load(path)) == len(tokens)]
            kept.write_bytes(b"damaged")
            assert np.array_equal(first.encode(content), tokens)
        assert len(first.encode(self.CONTENT)) < len(self.CONTENT) / 3

    def test_bits_per_byte_are_the_nats_of_all_targets_over_their_bytes(self):
        config = replace(CONFIG, tokenizer="bpe", vocabulary_size=300)
        objective = make_objective(corpus_of_text("text", TEXT, "", ""), config)
        model = build_model(get_variant("softmax-rope"), config, 0, objective).eval()
        inputs, targets = objective.windows("test", 5)
        nats = F.cross_entropy(model(inputs).mT, targets, reduction="sum").item()
        size = sum(len(objective.tokenizer.pieces[token]) for token in targets.flatten().tolist())
        assert evaluate(model, objective, "test", 5, config) == pytest.approx({
            "bits_per_byte": nats / math.log(2) / size,
            "nats_per_token": nats / targets.numel(),
            "tokens_per_byte": targets.numel() / size,
        }, rel=1e-5)  # fmt: skip
        assert objective.training_metrics(2.0, (inputs, targets))["bits_per_byte"] == pytest.approx(
            2 / math.log(2) * targets.numel() / size
        )

    def test_a_comparison_trains_one_tokenizer_and_keeps_it(self, tmp_path, capsys, monkeypatch):
        out, file = tmp_path / "out", tmp_path / "text.txt"
        file.write_bytes(TEXT)
        monkeypatch.setattr("experiments.commands.run_training.write_report", lambda root, study: root / "report.html")
        monkeypatch.setattr("experiments.commands.run_training.result_table", lambda root: "")
        words = (
            "run convergence --preset smoke --data text --tokenizer bpe --vocabulary-size 280 --steps 2 --context 16"
        )
        arguments = [*words.split(), "--seeds=2", "--variants=softmax-none", f"--data-file={file}", f"--out={out}"]
        assert main(arguments) == 0
        kept, record = (out / "tokenizer.json").read_text(), read_comparison(out).objective
        tokenizer = SubwordTokenizer(kept)
        assert (record.metric, record.vocabulary, record.tokenizer_sha256) == ("bits_per_byte", 280, tokenizer.sha256)
        row = metrics_rows(out / "softmax-none/seed1/metrics.jsonl")[-1]
        assert row["bits_per_byte"] == pytest.approx(row["nats_per_token"] / math.log(2) * row["tokens_per_byte"])
        # Another tokenizer in its place is another thing that is trained, and a damaged one is named.
        (out / "tokenizer.json").write_text(json.dumps(json.loads(kept)))
        assert main(arguments) == 2
        assert "differs in what is trained (next subword" in capsys.readouterr().err
        (out / "tokenizer.json").write_text("{}")
        assert main(arguments) == 2
        assert "tokenizer.json is no tokenizer" in capsys.readouterr().err

    def test_what_does_not_go_is_said_in_a_line(self, monkeypatch):
        corpus, config = corpus_of_text("text", TEXT, "", ""), replace(CONFIG, tokenizer="bpe", vocabulary_size=300)
        with pytest.raises(ValueError, match="vocabulary_size is 256 with the tokenizer bpe; give 256 for bytes"):
            replace(CONFIG, tokenizer="bpe")
        with pytest.raises(ValueError, match="--data recall-64 is generated"):
            make_objective(load_corpus("recall-64"), config)
        with pytest.raises(ValueError, match=r"the validation split has .* tokens, fewer than the 2,001"):
            make_objective(corpus, replace(config, context=2000))
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        with pytest.raises(ValueError, match=r"pip install .*\[texts\]"):
            make_objective(corpus, config)


def test_the_hash_of_the_code_covers_what_can_change_a_number_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    hashes = [environment.git().code_sha256]
    counted = ("linear_rope/features/favor.py", "experiments/train/loop.py", "experiments/config.py")
    for name in (*counted, "experiments/show/rows.py", "experiments/studies/length/claims.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a change")
        hashes.append(environment.git().code_sha256)
    assert len(set(hashes)) == 4
    assert len(set(hashes[3:])) == 1
