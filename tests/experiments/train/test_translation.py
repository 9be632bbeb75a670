"""Translations: sequences, loss, the average of checkpoints, and a model that learns and translates."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from experiments.train.checkpoint import checkpoint_path, load_average, read_checkpoint
from experiments.train.models import build_model
from experiments.train.tokens import BEGIN_ID, END_ID, PAD_ID
from experiments.train.translation import corpus_bleu, source_of, target_of, translate
from experiments.variants import get_variant
from tests.experiments.train.tasks import config_of, pairs, task_of
from tests.made_up import metrics_rows
from tests.training import train_run, train_until

HOW = {"context": 12, "batch_size": 16, "steps": 120, "warmup_steps": 20, "evaluate_every": 60, "kept_checkpoints": 5}
HOW |= {"schedule": "inverse-sqrt", "label_smoothing": 0.1}
CONFIG = config_of("translation", **HOW)


@pytest.fixture(scope="module")
def task():
    return task_of("translation", **HOW)


@pytest.fixture(scope="module")
def trained(task, tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    train_run(directory, "elu+1-rope-after", 0, CONFIG, task)
    return directory


@pytest.mark.parametrize(("length", "kept"), [(2, 2), (11, 11), (12, 11), (30, 11)])
def test_texts_are_ended_and_cut(length, kept):
    text = np.arange(100, 100 + length, dtype=np.uint16)
    assert source_of(text, 12).tolist() == [*text[:kept].tolist(), END_ID]
    # Twelve tokens are read, and the one behind them is predicted.
    assert target_of(text, 12).tolist() == [BEGIN_ID, *text.tolist(), END_ID][:13]


def test_both_languages_have_one_tokenizer_and_come_back_as_they_were(task):
    tokens, targets = task.windows("test", 40)
    of_split = {*pairs().test["source"]}, {*pairs().test["target"]}
    for rows, texts in zip((tokens, targets), of_split, strict=True):
        assert {task.tokenizer.decode(row.tolist()) for row in rows} == texts
    assert (targets[:, 0] == BEGIN_ID).all()
    assert ((tokens == END_ID).sum(1) == 1).all()


def test_an_epoch_has_every_pair_once(task):
    steps = math.ceil(300 / 16)
    rows = [tuple(row[row != PAD_ID].tolist()) for step in range(steps) for row in task.batch(0, step)[0]]
    expected = [tuple(source.tolist()) for source, _ in task.sequences("train", range(300))]
    assert sorted(rows[:300]) == sorted(expected)
    assert not all(map(torch.equal, task.batch(0, 0), task.batch(1, 0)))
    # Later epochs begin within a batch.
    for epoch in range(1, 4):
        assert sorted(task._epoch(0, epoch)) == [*range(300)]


def test_smoothing_is_of_the_training_loss_alone_and_padding_counts_nowhere(task):
    model = build_model(get_variant("softmax-rope"), CONFIG, 0, task).double().eval()
    source, target = batch = task.windows("validation", 20)
    logits = model(source, target[:, :-1], source == PAD_ID).log_softmax(-1)
    there = target[:, 1:] != PAD_ID
    right = -logits.gather(-1, target[:, 1:, None]).squeeze(-1)[there]
    uniform = -logits.mean(-1)[there]
    # Szegedy et al. 2015, section 7: (1 - ε) of the right token and ε of the uniform distribution.
    expected = 0.9 * right.mean() + 0.1 * uniform.mean()
    torch.testing.assert_close(task.loss(model, batch), expected)
    found = task.metrics(task.tally(model, batch))
    assert found["nats_per_token"] == pytest.approx(right.mean().item(), rel=1e-5)
    wider = F.pad(source, (0, 3)), F.pad(target, (0, 3))
    torch.testing.assert_close(task.loss(model, wider), task.loss(model, batch))
    assert task.training_metrics(2.0, batch) == {}, "it is no loss in nats per token"
    texts = task.examples.texts("validation").iloc[task.chosen("validation", 20)]
    read, written = (sum(map(len, task.tokenizer.encode(texts[name].tolist()))) for name in ("source", "target"))
    assert task.tokens_in(wider, CONFIG) == read + written + 2 * len(texts)  # and the ends


def test_it_learns_to_translate(task, trained):
    assert metrics_rows(trained / "metrics.jsonl")[-1]["nats_per_token"] < 1
    model = build_model(get_variant("elu+1-rope-after"), CONFIG, 0, task).eval()
    load_average(trained, model, CONFIG)
    translated = partial(translate, model, task.tokenizer, CONFIG.context)
    test = pairs().test
    said = translated(test["source"].tolist())
    bleu, signature = corpus_bleu(said, test["target"].tolist())
    assert bleu > 40
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert translated([]) == []
    # The order of the texts, and those beside them, change nothing.
    assert translated(test["source"].tolist()[::-1]) == said[::-1]
    assert translated(["one two"]) == translated(["six", "one two", "four five three"])[1:2]


def test_the_average_is_of_the_last_regular_checkpoints(task, trained):
    steps = (80, 90, 100, 110, 120)
    assert [path.name for path in sorted((trained / "checkpoint").iterdir())] == [f"step{n:08d}" for n in steps]
    model = build_model(get_variant("elu+1-rope-after"), CONFIG, 0, task)
    assert load_average(trained, model, CONFIG) == 5
    parts = [read_checkpoint(checkpoint_path(trained / "checkpoint", step)).model for step in steps]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, torch.stack([part[name] for part in parts]).mean(0))


def average_of(directory, task, stop_at):
    """The averaged weights of a short run that is stopped after that step and goes on."""
    config = dataclasses.replace(CONFIG, steps=12, checkpoint_every=2)
    for steps in (stop_at, math.inf):
        train_until(steps, directory, "elu+1-rope-after", 0, config, task)
    model = build_model(get_variant("elu+1-rope-after"), config, 0, task)
    assert load_average(directory, model, config) == 5
    return model.state_dict()


def test_a_stop_between_two_checkpoints_changes_no_average(task, tmp_path):
    undisturbed = average_of(tmp_path / "undisturbed", task, math.inf)
    stopped = average_of(tmp_path / "stopped", task, 7)
    assert all(map(torch.equal, stopped.values(), undisturbed.values()))


@pytest.mark.parametrize(
    ("language", "tokenizer", "said", "wanted"),
    [
        ("zh", "zh", "我今天喜欢吃红色的苹果和梨。", "我今天喜欢吃绿色的苹果和梨。"),
        ("ja", "char", "私は今日赤いりんごを食べます。", "私は今日青いりんごを食べます。"),
        ("de", "13a", "Ich esse heute gern rote Äpfel und Birnen.", "Ich esse heute gern grüne Äpfel und Birnen."),
    ],
)
def test_bleu_counts_characters_where_words_are_not_separated(language, tokenizer, said, wanted):
    bleu, signature = corpus_bleu([said], [wanted], language)
    assert 40 < bleu < 90
    assert f"|tok:{tokenizer}|" in signature


def test_bleu_is_lower_for_what_is_too_short():
    words = "one two three four five six seven eight nine".split()
    bleu, _ = corpus_bleu([" ".join(words[:6])], [" ".join(words)])
    assert bleu == pytest.approx(100 * math.exp(1 - 9 / 6))  # the penalty alone, as every word is right
