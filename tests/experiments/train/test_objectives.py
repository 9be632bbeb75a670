"""What every objective keeps to, and kinds of training that only this file knows."""

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.config import Config
from experiments.data.corpus import corpus_of_text
from experiments.data.registry import load_data
from experiments.records.schema import ANSWERS, NEXT_BYTE
from experiments.train.chosen_objective import make_objective
from experiments.train.evaluate import evaluate
from experiments.train.models import build_model
from experiments.variants import Variant, get_variant
from linear_rope import LinearRoPEAttention
from linear_rope.attention.registry import ATTENTIONS
from tests.experiments.train.tasks import CONFIG, DATA, OF_TEXTS, TEXT, config_of, examples, task_of
from tests.made_up import DATA as RECORDED
from tests.made_up import loss_in_shares, make_record, metrics_rows
from tests.training import check_goes_on, train_run

LEARNT = {
    "bytes": ("bits_per_byte", 3),
    "subwords": ("bits_per_byte", 2),
    "masked": ("nats_per_masked_token", 3.5),
    "answers": ("bits_per_byte", 6),
    "pair": ("nats_per_example", 0.5),
    "score": ("nats_per_example", 3),
    "triplet": ("nats_per_example", 0.5),
}
"""of the test split after 60 steps, at most; documents are bytes, a text is a pair's half, translations are learnt in
test_translation.py"""


@pytest.fixture(scope="module")
def tasks():
    return {kind: task_of(kind) for kind in DATA}


@pytest.mark.parametrize("kind", LEARNT)
def test_every_kind_is_learnt(kind, tasks, tmp_path):
    train_run(tmp_path, "elu+1-rope-after", 0, config_of(kind), tasks[kind])
    rows = metrics_rows(tmp_path / "metrics.jsonl")
    first, tested = rows[0], rows[-1]
    metric, most = LEARNT[kind]
    assert tested[metric] < most < first[metric]
    assert tasks[kind].primary.name in tested
    if kind in ("pair", "triplet"):
        assert tested["accuracy"] > 0.8


@pytest.mark.parametrize("kind", DATA)
class TestEvery:
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


def test_another_kind_of_training_goes_through_the_ordinary_loop(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "docs/my-rope")
    objective = import_module("my_rope.objectives").ReadBackwards(corpus_of_text("text", TEXT), CONFIG)
    train_run(tmp_path, "favor+-rope-after", 0, replace(CONFIG, diagnose_windows=2), objective)
    rows = metrics_rows(tmp_path / "metrics.jsonl")
    assert not any("bits_per_byte" in row for row in rows)
    for row in rows:
        assert {"loss"} <= row.keys() if row["split"] == "train" else {"loss", "accuracy"} <= row.keys()
    assert rows[-1]["loss"] != rows[0]["loss"]
    assert objective.describe().better == "higher"


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
    assert make_objective(load_data("recall-64"), Config(context=64)).describe() == ANSWERS
    assert make_objective(corpus_of_text("text", TEXT, "", ""), CONFIG).describe() == NEXT_BYTE
    assert make_record().objective == NEXT_BYTE
    for name in ("recall-64", "copying-128"):
        assert make_record(data=[RECORDED | {"name": name}]).objective == ANSWERS


MASKED = {"objective": "masked", "tokenizer": "wordpiece", "vocabulary_size": 300}


@pytest.mark.parametrize(
    ("module", "kind"), [("tokenizers", "subwords"), ("sacrebleu.metrics", "translation"), ("sklearn.metrics", "mrpc")]
)
def test_without_a_library_it_is_said_at_the_beginning_what_to_install(module, kind, monkeypatch):
    monkeypatch.setitem(DATA, "mrpc", (lambda: examples("pair", "mrpc"), OF_TEXTS))  # judged by F1
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=r"pip install .*\[texts\]"):
        task_of(kind)


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("bytes", {"examples": 5}, "--examples is 5, which is for labelled texts and translations, and --data text is"),
        (
            "bytes",
            {"packing": "documents"},
            "--packing is documents, which is for a text of documents, and --data text",
        ),
        ("bytes", {"label_smoothing": 0.1}, r"--label-smoothing is 0\.1, which is for translations, and --data text"),
        ("bytes", {"initial_weights": "there"}, "--initial-weights is there, which is for labelled texts"),
        ("bytes", {"objective": "masked"}, "objective is masked with the tokenizer bytes; give wordpiece"),
        ("bytes", {"context": 4000}, "the validation split has .* tokens, fewer than the 4,001"),
        ("subwords", {"vocabulary_size": 256}, "vocabulary_size is 256 with the tokenizer bpe; give 256 for bytes"),
        (
            "masked",
            {"objective": "next"},
            "--tokenizer is wordpiece, but .* --objective next; give --tokenizer bytes or",
        ),
        ("masked", {"context": 2}, "context is 2; give 3 or more"),
        ("answers", {"tokenizer": "bpe", "vocabulary_size": 300}, "generated sequences .*; give --tokenizer bytes"),
        ("answers", {"context": 100}, "--context is 100, but the sequences of --data recall-64 .*; give --context 64"),
        ("text", {"tokenizer": "bytes", "vocabulary_size": 256}, "--tokenizer is bytes, but --data texts is labelled"),
        ("text", MASKED, "--objective is masked, .* and --data texts is labelled texts; leave it out"),
        ("text", {"diagnose_windows": 2}, "--diagnose-windows is 2, which is for"),
        ("translation", {"tokenizer": "wordpiece"}, "is translations and --objective next; give --tokenizer bpe"),
        ("translation", {"tested": "best"}, "--tested is best, which .* --data pairs is translations"),
    ],
)
def test_settings_that_do_not_fit_are_refused(kind, settings, said):
    with pytest.raises(ValueError, match=said):
        task_of(kind, **settings)
