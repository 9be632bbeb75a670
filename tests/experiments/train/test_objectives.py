"""What every objective keeps to, and kinds of training that only this file knows."""

import re
import shutil
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
from experiments.records.record import read_comparison
from experiments.records.schema import ANSWERS, NEXT_BYTE
from experiments.run.job import train_directory
from experiments.train.chosen_objective import make_objective
from experiments.train.evaluate import evaluate
from experiments.train.models import build_model
from experiments.train.objectives import Metric, Objective
from experiments.variants import Variant, get_variant
from linear_rope import Encoder, LinearRoPEAttention
from linear_rope.attention.registry import ATTENTIONS
from linear_rope.blocks import initialise
from tests.experiments.train.tasks import CONFIG, DATA, TEXT, config_of, task_of
from tests.made_up import DATA as RECORDED
from tests.made_up import loss_in_shares, make_record, metrics_rows
from tests.training import check_goes_on, train_run

LEARNT = {
    "bytes": ("bits_per_byte", 3),
    "subwords": ("bits_per_byte", 2),
    "documents": ("bits_per_byte", 3),
    "masked": ("nats_per_masked_token", 3.5),
    "answers": ("bits_per_byte", 6),
    "text": ("nats_per_example", 0.5),
    "pair": ("nats_per_example", 0.5),
    "score": ("nats_per_example", 3),
    "triplet": ("nats_per_example", 0.5),
    "translation": ("nats_per_token", 2.5),
}
"""of the test split after 60 steps, at most"""


@pytest.fixture(scope="module")
def tasks():
    return {kind: task_of(kind) for kind in DATA}


@pytest.mark.parametrize("kind", DATA)
class TestEvery:
    def test_is_learnt(self, kind, tasks, tmp_path):
        train_run(tmp_path, "elu+1-rope-after", 0, config_of(kind), tasks[kind])
        rows = metrics_rows(tmp_path / "metrics.jsonl")
        first, tested = rows[0], rows[-1]
        metric, most = LEARNT[kind]
        assert tested[metric] < most < first[metric]
        primary = tasks[kind].primary
        assert primary.name in tested
        if kind in ("text", "pair", "triplet"):
            assert tested["accuracy"] > 0.8

    def test_has_batches_by_seed_and_step_alone_and_the_same_windows(self, kind, tasks):
        task, again = tasks[kind], task_of(kind)
        np.random.seed(1)
        torch.manual_seed(1)
        expected = np.random.RandomState(1).random(), torch.rand(1, generator=torch.Generator().manual_seed(1))
        forwards = [task.batch(3, step) for step in range(4)]
        backwards = [again.batch(3, step) for step in reversed(range(4))][::-1]
        assert (np.random.random(), torch.rand(1)) == expected
        for batch, other in zip(forwards, backwards, strict=True):
            assert all(map(torch.equal, batch, other))
        others = task.batch(3, 5), task.batch(4, 0)
        assert not any(all(map(same, forwards[0], other)) for other in others)
        assert all(map(torch.equal, task.windows("validation", 5), again.windows("validation", 5)))
        assert not all(map(same, task.windows("validation", 5), task.windows("test", 5)))

    def test_gives_an_example_the_same_alone_as_among_others(self, kind, tasks):
        config = config_of(kind, initial_std=0.5)  # so that it says different things without training
        model = build_model(get_variant("elu+1-rope-after"), config, 0, tasks[kind])
        alone, together = (
            evaluate(model, tasks[kind], "test", 20, replace(config, batch_size=size)) for size in (1, 7)
        )
        assert alone == pytest.approx(together, rel=1e-4)

    def test_has_the_loss_of_a_batch_from_shares_of_it(self, kind, tasks):
        task = tasks[kind]
        model = build_model(get_variant("softmax-rope"), config_of(kind), 0, task).eval()
        batch = task.batch(0, 0)
        torch.testing.assert_close(loss_in_shares(task, model, batch), task.loss(model, batch))

    def test_goes_on_where_it_was_stopped(self, kind, tasks, tmp_path):
        few = {"steps": 8, "warmup_steps": 2, "log_every": 1, "evaluate_every": 3, "checkpoint_every": 3}
        few |= {"evaluation_windows": 5, "test_windows": 5, "dropout": 0.1}
        if kind in ("text", "score"):
            few |= {"tested": "best"}
        variant = "elu+1-rope-after@decay=gate" if kind in ("bytes", "masked") else "elu+1-rope-after"
        check_goes_on(tmp_path, lambda: task_of(kind, **few), variant, config_of(kind, **few))


def same(one, other):
    return one.shape == other.shape and torch.equal(one, other)


class Scores(nn.Module):
    """Scores of ``classes`` for each sequence: the mean of an encoder's representations, and a matrix."""

    def __init__(self, config, classes):
        super().__init__()
        self.encoder, self.head = Encoder(config), nn.Linear(config.dim, classes)
        initialise(self, config)

    def forward(self, tokens):
        return self.head(self.encoder(tokens).mean(dim=1))


class MoreOften(Objective):
    """Which of two tokens is there more often?"""

    name, vocabulary, length = "classification", 8, 15
    primary = Metric("accuracy", "share of sequences", "higher")

    def batch(self, seed, step, count=16):
        tokens = np.random.default_rng([seed, step]).integers(0, 2, (count, self.length))
        return torch.from_numpy(tokens), torch.from_numpy((tokens.mean(1) > 0.5).astype(np.int64))

    def windows(self, split, count):
        return self.batch({"validation": 10**6, "test": 10**6 + 1}[split], 0, count)

    def model(self, config, attention):
        return Scores(config, classes=2)

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


class Pairs(MoreOften):
    """Do two texts begin with the same token? Both go through one encoder."""

    name = "pairs of texts"

    def batch(self, seed, step, count=16):
        generator = np.random.default_rng([seed, step])
        first, second = generator.integers(0, 2, (2, count, 1)) + np.zeros((1, 1, self.length), dtype=np.int64)
        return torch.from_numpy(first), torch.from_numpy(second), torch.from_numpy((first == second)[:, 0].astype(int))

    def model(self, config, attention):
        return Scores(config, classes=config.dim)

    def logits(self, model, batch):
        one, other = model(batch[0]), model(batch[1])
        alike = 4 - (one - other).abs().sum(-1).float()
        return torch.stack((-alike, alike), dim=-1)


OWN = replace(CONFIG, context=16, diagnose_windows=2, initial_std=0.02, evaluation_windows=64, test_windows=64)


@pytest.mark.parametrize("objective", [MoreOften(), Pairs()], ids=lambda objective: objective.name)
@pytest.mark.parametrize("variant", ["softmax-learned", "favor+-rope-after"])
def test_another_kind_of_training_goes_through_the_ordinary_loop(tmp_path, objective, variant):
    train_run(tmp_path, variant, 0, replace(OWN, batch_size=16), objective)
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
from tests.experiments.train.test_objectives import MoreOften

def load(data_dir, data_file):
    return corpus_of_text("more-often", bytes(range(100)), "drawn", "Not a text.")

mine = DataSet("more-often", "Which token?", load, objective=lambda corpus, config: MoreOften())
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
    trained, most = load(out).run("favor+-rope-after"), record.config["test_windows"]
    assert evaluate(trained.model(), MoreOften(), "test", most, OWN)["accuracy"] == test["accuracy"]
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
    train_run(tmp_path, variant, 0, replace(CONFIG, steps=2), objective)
    with pytest.raises(ValueError, match="attention is 'nothing'"):
        build_model(replace(variant, kernel="nothing"), CONFIG, 0, objective)


def test_records_say_what_was_trained_and_old_ones_are_told_by_their_data():
    assert make_objective(load_corpus("recall-64"), Config(context=64)).describe() == ANSWERS
    assert make_objective(corpus_of_text("text", TEXT, "", ""), CONFIG).describe() == NEXT_BYTE
    assert make_record().objective == NEXT_BYTE
    for name in ("recall-64", "copying-128"):
        assert make_record(data=[RECORDED | {"name": name}]).objective == ANSWERS


MASKED = {"objective": "masked", "tokenizer": "wordpiece", "vocabulary_size": 300}


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("bytes", {"examples": 5}, "--examples is 5, which is for labelled texts and translations, and --data text"),
        ("bytes", {"packing": "documents"}, "--packing is documents, but --data text is no text of documents; give"),
        ("bytes", {"label_smoothing": 0.1}, r"--label-smoothing is 0\.1, which is for translations, and --data text"),
        ("bytes", {"initial_weights": "there"}, "--initial-weights is there, which is for labelled texts"),
        ("bytes", {"objective": "masked"}, "objective is masked with the tokenizer bytes; give wordpiece"),
        ("bytes", {"context": 4000}, "the validation split has .* bytes, fewer than the 4,001"),
        ("subwords", {"context": 2000}, "the validation split has .* tokens, fewer than the 2,001"),
        ("subwords", {"vocabulary_size": 256}, "vocabulary_size is 256 with the tokenizer bpe; give 256 for bytes"),
        ("masked", {"objective": "next"}, "give --objective masked, or bpe"),
        ("masked", {"context": 2}, "context is 2; give 3 or more"),
        ("answers", {"tokenizer": "bpe", "vocabulary_size": 300}, "--data recall-64 is generated"),
        ("answers", {"context": 100}, "--context is 100, but the sequences of --data recall-64 .*; give --context 64"),
        ("answers", {"packing": "documents"}, "--packing is documents, but --data recall-64"),
        ("text", {"tokenizer": "bytes", "vocabulary_size": 256}, "--tokenizer is bytes, but --data texts is labelled"),
        ("text", MASKED, "--objective is masked .* for texts, and --data texts is labelled texts"),
        ("text", {"diagnose_windows": 2}, "--diagnose-windows is 2, which are for texts"),
        ("text", {"label_smoothing": 0.1}, "for translations, and --data texts is none"),
        ("translation", {"tokenizer": "bytes", "vocabulary_size": 256}, "is translations; give --tokenizer bpe and"),
        ("translation", {"tokenizer": "wordpiece"}, "translations, which are written out from the start; give bpe and"),
        ("translation", {"initial_weights": "there"}, "written out from the start"),
        ("translation", {"tested": "best"}, "--tested is best, but --data pairs is translations"),
    ],
)
def test_settings_that_do_not_fit_are_refused(kind, settings, said):
    with pytest.raises(ValueError, match=said):
        task_of(kind, **settings)
