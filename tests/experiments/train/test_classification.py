"""Labelled texts: sequences, batches, metrics, and encoders that begin with what another comparison learnt."""

import hashlib
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save

from experiments.cli import main
from experiments.config import Config
from experiments.data.examples import examples_of
from experiments.records.files import write_json
from experiments.train.checkpoint import checkpoint_path, read_checkpoint
from experiments.train.chosen_objective import make_objective
from experiments.train.classification import classify, sequence_of
from experiments.train.models import build_model
from experiments.train.pretrained import Pretrained
from experiments.train.tokens import BEGIN_ID, END_ID, PAD_ID
from experiments.variants import get_variant
from tests.experiments.train.tasks import BAD, CLASSES, GOOD, config_of, examples, sentence, task_of
from tests.made_up import trained_here, undrawn
from tests.training import check_goes_on

CONFIG = config_of("text")


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [([3], [3]), ([30], [10]), ([3, 4], [3, 4]), ([3, 30], [3, 6]), ([30, 3], [6, 3]), ([30, 30], [4, 5])],
)
def test_the_longer_text_is_cut(lengths, kept):
    texts = [np.arange(100 * n, 100 * n + length, dtype=np.uint16) for n, length in enumerate(lengths, start=1)]
    expected = [BEGIN_ID]
    for text, most in zip(texts, kept, strict=True):
        expected += [*text[:most].tolist(), END_ID]
    assert sequence_of(texts, 12).tolist() == expected


@pytest.mark.parametrize("kind", CLASSES)
def test_an_example_gets_the_same_answer_by_itself_as_among_others(kind):
    config = config_of(kind, initial_std=0.5)  # so that it says different things without training
    task = task_of(kind, initial_std=0.5)
    model = build_model(get_variant("elu+1-rope-after"), config, 0, task).eval()
    texts = task.examples.texts("test")
    said = classify(model, task.tokenizer, config.context, task.describe(), texts.to_numpy().tolist())
    with torch.no_grad():
        together = task.predict(model, task.batch_of("test", range(len(texts)))[0])
    if task.examples.classes:
        assert said == [task.examples.classes[number] for number in together.argmax(-1)]
    else:
        assert said == pytest.approx(together.tolist(), rel=1e-4)
    assert kind == "score" or len({*said}) == 2


def test_the_texts_of_a_batch_are_of_about_one_length_whatever_is_read_of_them():
    rng = np.random.default_rng(0)
    long = [pd.DataFrame({"text": [" ".join(rng.choice(GOOD, count)) for count in rng.integers(5, 200, size)],
                          "label": "positive"}) for size in (400, 2, 2)]  # fmt: skip
    task = make_objective(examples_of("long", long, "", "", CLASSES["text"]), CONFIG)
    whole = task.of({"context": 256})
    ranges = []
    for step in range(50):
        tokens, _ = whole.batch(0, step)
        lengths = (tokens[:, 0] != PAD_ID).sum(1)
        ranges.append(int(lengths.max() - lengths.min()))
        cut, _ = task.batch(0, step)
        assert torch.equal(cut[:, 0, :5], tokens[:, 0, :5])
        assert whole.tokens_in((tokens,), CONFIG) == int(lengths.sum())
    assert np.median(ranges) < 30


def test_metrics_are_those_of_the_whole_split():
    said, labels = [0, 1, 1, 1, 0], [0, 1, 0, 1, 1]
    sums = {"loss": 2.5, "said": said, "labels": labels}
    accuracy = make_objective(examples("text"), CONFIG)
    assert accuracy.metrics(sums) == {"nats_per_example": 0.5, "accuracy": 0.6}
    f1 = make_objective(examples("pair", "mrpc"), CONFIG)
    # Two right of three that it says are of the class, and of three that are.
    assert f1.metrics(sums)["f1"] == pytest.approx(2 / 3)
    matthews = make_objective(examples("text", "cola"), CONFIG)
    # tp 2, tn 1, fp 1, fn 1
    assert matthews.metrics(sums)["matthews"] == pytest.approx((2 * 1 - 1 * 1) / np.sqrt(3 * 3 * 2 * 2))
    spearman = make_objective(examples("score", "sts-b"), CONFIG)
    scores = {"loss": 1.0, "said": [0.1, 0.4, 0.2, 0.9], "labels": [1.0, 2.0, 3.0, 4.0]}
    assert spearman.metrics(scores)["spearman"] == pytest.approx(0.8)
    assert spearman.metrics({"loss": 1.0, "said": [1.0, 1.0], "labels": [1.0, 2.0]})["spearman"] == 0.0


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A comparison of masked tokens of the same texts."""
    there = tmp_path_factory.mktemp("masked")
    text = there / "text.txt"
    text.write_text("\n".join(sentence(np.random.default_rng(n), GOOD + BAD) for n in range(400)))
    words = ["run", "convergence", "--preset", "smoke", "--data", "text", "--data-file", str(text), "--objective"]
    words += ["masked", "--tokenizer", "wordpiece", "--vocabulary-size", "300", "--context", "24", "--seeds", "1"]
    with undrawn(), trained_here():
        assert main([*words, "--variants", "softmax-learned,elu+1-rope-after", "--out", str(there / "mlm")]) == 0
    return there / "mlm"


def fine_tuning(root, **settings):
    here = {"layers": 1, "dim": 32, "heads": 2, "context": 24, "batch_size": 8, "tokenizer": "wordpiece"}
    config = Config(**{**here, "vocabulary_size": 300, "initial_weights": str(root)} | settings)
    return config, make_objective(examples("text"), config)


def test_the_encoder_and_the_tokenizer_are_those_of_its_variant_and_seed(root):
    config, task = fine_tuning(root)
    assert task.tokenizer.sha256 == Pretrained.read(root, config).tokenizer.sha256
    # One that reads more than the other did has the same weights, unless it has a table of positions.
    for name in ("softmax-learned", "elu+1-rope-after@learning_rate=0.5", "elu+1-rope-after@context=48"):
        model = build_model(get_variant(name), config, 0, task)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        task.prepare(model, get_variant(name), 0)
        there = root / name.partition("@")[0] / "seed0" / "checkpoint"
        trained = read_checkpoint(checkpoint_path(there, 20)).model
        assert all(torch.equal(value, trained[f"encoder.{key}"]) for key, value in model.encoder.state_dict().items())
        changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
        assert {key.split(".")[0] for key in changed} == {"encoder"}


def test_a_stopped_run_that_began_with_an_encoder_goes_on_to_the_same_numbers(root, tmp_path):
    few = {"steps": 8, "warmup_steps": 2, "log_every": 1, "evaluate_every": 3, "checkpoint_every": 3, "dropout": 0.1}
    few |= {"evaluation_windows": 20, "test_windows": 20, "tested": "best", "learning_rate": 1e-2}
    config, _ = fine_tuning(root, **few)
    check_goes_on(tmp_path, lambda: make_objective(examples("text"), config), "elu+1-rope-after", config)


@pytest.mark.parametrize(
    ("name", "seed", "settings", "said"),
    [
        ("relu-none@context=48", 0, {}, "relu-none@context=48 with seed 0; `.* run .*` trains it if --variants and"),
        ("softmax-learned", 1, {}, "with seed 1; `.* run .*` trains it if"),
        ("softmax-learned", 0, {"dim": 64}, r"size \(.*mismatch for .*\[51, 32\].*\[51, 64\].*\); give its --dim"),
        ("softmax-sinusoidal", 0, {"initial_std": 0.08}, "give --initial-std 0.02 --initial-spread 0.9"),
    ],
)
def test_what_is_not_there_is_refused(root, name, seed, settings, said):
    config, task = fine_tuning(root, **settings)
    model = build_model(get_variant(name), config, seed, task)
    with pytest.raises(ValueError, match=said):
        task.prepare(model, get_variant(name), seed)


def test_settings_that_the_encoder_or_the_texts_do_not_have_are_refused(root):
    for name, value, there in (("decay", "fixed", "none"), ("vocabulary_size", 9000, 300)):
        option = f"--{name.replace('_', '-')}"
        told = f"{option} is {value}, but .* was trained with {there}; give {option} {there}"
        with pytest.raises(ValueError, match=told):
            fine_tuning(root, **{name: value})


def test_an_encoder_that_is_not_trained_yet_or_damaged_is_refused(root, tmp_path):
    variant, there = get_variant("softmax-learned"), shutil.copytree(root, tmp_path / "mlm")
    _, task = fine_tuning(there)
    (path,) = (there / variant.name).glob("seed0/checkpoint/*20/model.safetensors")
    path.write_bytes(path.read_bytes()[:-1])  # and no older one is taken
    with pytest.raises(ValueError, match=f"{path.parent} is damaged .model.safetensors does not match its checksum"):
        task.initial_weights(variant, 0)
    write_json(there / variant.name / "seed0" / "status.json", {"state": "running"})
    with pytest.raises(ValueError, match=r"has no trained softmax-learned with seed 0 yet; `.*` finishes what is"):
        task.initial_weights(variant, 0)


def test_without_encoders_the_command_is_told_that_makes_them(tmp_path, capsys):
    out = tmp_path / "glue"
    words = "run glue --data late-verdicts --preset cpu --dry-run --initial-weights".split()
    assert main([*words, str(tmp_path / "mlm"), "--out", str(out)]) == 2
    expected = f"run mlm --out {tmp_path / 'mlm'}`, with the same --preset, trains the encoders\n"
    assert capsys.readouterr().err.endswith(expected)
    assert not out.exists()


@pytest.fixture
def encoders(root, tmp_path):
    """The comparison of masked tokens in a place of its own, and what fine-tunes its encoders from the command line."""
    there, out = shutil.copytree(root, tmp_path / "mlm"), tmp_path / "fine"
    words = ["run", "glue", "--preset", "smoke", "--initial-weights", str(there), "--vocabulary-size", "300"]
    words += ["--context", "24", "--variants", "softmax-learned", "--steps", "10", "--workers", "1", "--out", str(out)]
    return there, words


def retrain(there):
    """As if the encoder had been trained anew: one weight of it is another."""
    directory = there / "softmax-learned" / "seed0" / "checkpoint" / "step00000020"
    weights = load_file(directory / "model.safetensors")
    next(iter(weights.values())).flatten()[0] += 1
    (directory / "model.safetensors").write_bytes(save(weights))
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["sha256"]["model.safetensors"] = hashlib.sha256(save(weights)).hexdigest()
    write_json(directory / "manifest.json", manifest)


@pytest.mark.slow
@pytest.mark.full
def test_a_comparison_is_of_one_encoder_for_each_run(encoders, tmp_path, capsys):
    there, words = encoders
    with undrawn():
        assert main(words) == 0
        sha256 = hashlib.sha256(
            (there / "softmax-learned/seed0/checkpoint/step00000020/model.safetensors").read_bytes()
        ).hexdigest()
        record = json.loads((tmp_path / "fine" / "comparison.json").read_text())
        config = json.loads((tmp_path / "fine/softmax-learned/seed0/config.json").read_text())
        assert record["initial_weights"] == {"softmax-learned/seed0": sha256}
        assert config["initial_weights_sha256"] == sha256
        # The directory's name does not matter, its weights do.
        moved = shutil.copytree(there, tmp_path / "moved")
        again = [*words, "--initial-weights", str(moved), "--reuse", str(tmp_path / "fine")]
        assert main([*again, "--out", str(tmp_path / "same")]) == 0
        assert "taken over from" in capsys.readouterr().out
        retrain(moved)
        assert main([*again, "--out", str(tmp_path / "other")]) == 0
        assert "taken over from" not in capsys.readouterr().out
        retrain(there)
        assert main(words) == 2
    told = "the encoder that softmax-learned/seed0 begins with (sha256 "
    assert told in capsys.readouterr().err
    # A run that was copied from elsewhere.
    shutil.copytree(tmp_path / "fine" / "softmax-learned", tmp_path / "other" / "softmax-learned", dirs_exist_ok=True)
    assert main(["report", str(tmp_path / "other")]) == 2
    assert told in capsys.readouterr().err


def test_a_length_that_has_no_room_for_each_text_is_refused():
    texts = [np.arange(5, 9, dtype=np.uint16)] * 2
    with pytest.raises(ValueError, match="context is 4; give 5 or more"):
        sequence_of(texts, 4)
    assert len(sequence_of(texts, 5)) == 5
