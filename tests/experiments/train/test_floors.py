"""What simple things have on the windows of runs, against sums by hand and models that do the same."""

import dataclasses
import lzma
import math
from collections import Counter
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.config import Config
from experiments.data.corpus import NOT_SCORED, corpus_of_text
from experiments.data.examples import NEARER, examples_of
from experiments.data.registry import load_data
from experiments.records.schema import Floor
from experiments.train.chosen_objective import make_objective
from experiments.train.counting import WittenBell
from experiments.train.objectives import floors_of
from experiments.train.translation import corpus_bleu

TEXT = ("a man and a dog walk by the old river and the man sings. " * 60 + "The dog barks at the moon. " * 60).encode()
WORDPIECE = {"tokenizer": "wordpiece", "vocabulary_size": 300}
SIZES = {"context": 16, "batch_size": 4, "test_windows": 9}


def by_name(objective, split="test", **settings):
    """The values of the primary metric's floors."""
    floors = objective.floors(Config(**SIZES | settings))
    return {each.name: each.value for each in floors if (each.metric, each.split) == (objective.primary.name, split)}


def test_the_floor_of_masked_tokens_is_the_loss_of_their_frequencies():
    objective = make_objective(corpus_of_text("text", TEXT), Config(**SIZES, **WORDPIECE, objective="masked"))
    seen = np.bincount(objective.splits["train"], minlength=objective.vocabulary) + 1
    for split in ("validation", "test"):
        targets = objective.windows(split, SIZES["test_windows"])[1]
        nats = -np.log(seen / seen.sum())[targets[targets != NOT_SCORED]].mean()
        floors = by_name(objective, split, evaluation_windows=SIZES["test_windows"])
        assert floors == {"unigram": pytest.approx(nats)}


def whole(batch):
    """The windows of inputs and targets."""
    return torch.cat([batch[0], batch[1][:, -1:]], 1).numpy()


@pytest.mark.parametrize("settings", [{}, {"tokenizer": "bpe", "vocabulary_size": 280}])
def test_the_floors_of_a_text_are_losses_of_n_grams_of_what_is_read(settings):
    config = Config(**SIZES, **settings, steps=30)
    objective = make_objective(corpus_of_text("text", TEXT), config)
    read = np.concatenate([whole(objective.batch(0, step)) for step in range(30)])
    floors, tested = by_name(objective, **settings, steps=30), objective.windows("test", config.test_windows)
    assert set(floors) - {"4-gram", "5-gram", "6-gram"} == {"unigram", "bigram", "trigram", "xz, level 9"}
    pieces = objective.tokenizer.pieces if settings else [b"."] * 256
    size = sum(len(pieces[token]) for token in tested[1].flatten().tolist())
    nats = WittenBell(read, objective.vocabulary).losses(whole(tested))
    for name, loss in zip(("unigram", "bigram", "trigram"), nats, strict=False):
        assert floors[name] == pytest.approx(loss / math.log(2) * tested[1].numel() / size, rel=1e-9)
    test = objective.corpus.test.tobytes()
    assert floors["xz, level 9"] == 8 * len(lzma.compress(test, preset=9)) / len(test)
    assert [each.name for each in objective.floors(config) if not each.equal] == ["xz, level 9"] * 2


def test_the_order_is_chosen_on_the_validation_split():
    # Its second half repeats what was read, where long n-grams are best; the test split is noise.
    noise = np.random.default_rng(0).integers(0, 256, 6000, dtype=np.uint8).tobytes()
    corpus = corpus_of_text("text", noise)
    corpus = dataclasses.replace(corpus, validation=corpus.train[1000:2000])
    floors = by_name(make_objective(corpus, Config(**SIZES)), steps=2000)
    assert "6-gram" in floors
    assert floors["6-gram"] > floors["unigram"]


def test_of_more_than_can_be_counted_the_beginning_of_the_split_is_counted_once(monkeypatch):
    objective = make_objective(corpus_of_text("text", TEXT), Config(**SIZES))
    few, many = by_name(objective, steps=40), by_name(objective, steps=1000)
    train = objective.splits["train"][:4000]
    monkeypatch.setattr("experiments.train.objectives.MOST_COUNTED", len(train))
    assert by_name(objective, steps=40) == few
    once = WittenBell(train[None], 256).losses(whole(objective.windows("test", 9)))
    assert by_name(objective, steps=1000)["bigram"] == pytest.approx(once[1] / math.log(2)) != many["bigram"]


def test_each_budget_has_its_own_and_what_is_known_is_kept():
    config = Config(**SIZES, steps=60, budgets="20")
    objective = make_objective(corpus_of_text("text", TEXT), config)
    found = floors_of(objective, config, [])
    assert {each.steps for each in found} == {20, 60}
    bigrams = {each.steps: each.value for each in found if (each.name, each.split) == ("bigram", "test")}
    assert bigrams == {steps: by_name(objective, steps=steps)["bigram"] for steps in (20, 60)}
    kept = [Floor(name="made up", metric="bits_per_byte", value=1.0, steps=20)]
    again = floors_of(objective, config, kept)
    assert [each for each in again if each.steps == 20] == kept
    assert [each for each in again if each.steps == 60] == [each for each in found if each.steps == 60]


def examples(name, rows, columns, classes=(), **settings):
    """An objective of these rows in every split."""
    frame = pd.DataFrame(rows, columns=columns)
    config = Config(**SIZES, **WORDPIECE | settings)
    return make_objective(examples_of(name, [frame] * 3, "made by the test", "", classes), config)


def labelled(name, labels):
    rows = [("some words", f"{n} more", label) for n, label in enumerate(labels)]
    return examples(name, rows, ["first", "second", "label"], ("n", "y"))


@pytest.mark.parametrize(
    ("name", "labels", "floor"),
    [
        ("other", "yyyn", 0.75),
        # All positive: precision is the share of positives p, recall 1, so F1 = 2p / (1 + p).
        ("mrpc", "yyyn", 1.5 / 1.75),
        ("cola", "yyyn", 0.0),
    ],
)
def test_the_floor_of_classes_is_the_best_constant_answer(name, labels, floor):
    objective = labelled(name, labels)
    assert by_name(objective, test_windows=10)["one answer to all"] == pytest.approx(floor)


def test_the_floors_of_scores_are_no_correlation_and_that_of_the_words_in_common():
    rows = [("a b", "c d", 0.0), ("a b", "b c d", 1.0), ("a b", "a b c", 2.5), ("a b", "a b", 5.0)]
    floors = by_name(examples("sts-b", rows, ["first", "second", "label"]))
    # Overlaps 0, 1/4, 2/3, 1 in the order of the labels; of the first's words 0, 1/2, 1, 1: ranks 1 2 3.5 3.5.
    ranks = np.corrcoef([1, 2, 3.5, 3.5], [1, 2, 3, 4])[0, 1]
    assert floors == pytest.approx({"one answer to all": 0, "word overlap": 1, "words repeated": ranks})


@pytest.mark.parametrize("classes", [("no", "yes"), ("yes", "no")])
def test_a_threshold_of_the_words_in_common_tells_classes_either_way(classes):
    rows = [("a b", "c", "no"), ("a b", "d e", "no"), ("a b", "a c", "yes"), ("a b", "a b", "yes")] * 2
    floors = by_name(examples("other", rows, ["first", "second", "label"], classes))
    assert floors == {"one answer to all": 0.5, "word overlap": 1, "words repeated": 1}


def test_of_triplets_the_text_with_more_words_in_common_is_the_nearer():
    rows = [("a b", "a b", "a c", "one"), ("a b", "c d", "a c", "other"), ("a b", "a b", "c d", "other")]
    floors = by_name(examples("other", rows, ["text", "one", "other", "label"], NEARER))
    assert floors == pytest.approx({"one answer to all": 2 / 3, "word overlap": 2 / 3, "words repeated": 2 / 3})


def test_naive_bayes_reads_no_more_than_the_runs():
    rows = [(f"{word} film", label) for word, label in (("good", "y"), ("bad", "n")) for _ in range(40)]
    objective = examples("other", rows, ["text", "label"], ("n", "y"))
    whole = by_name(objective, test_windows=80, steps=20)
    assert whole == {"one answer to all": 0.5, "unigram naive Bayes": 1, "bigram naive Bayes": 1}
    first = next(seed for seed in range(99) if set(objective.batch(seed, 0)[1].tolist()) == {0})
    objective._order = partial(lambda other, seed, epoch: objective._epoch(other, epoch), first)
    assert by_name(objective, test_windows=80, steps=1)["unigram naive Bayes"] == 0.5, "it has seen one class alone"


def test_the_floor_is_of_the_examples_that_are_tested():
    objective = labelled("other", "ynnynnnynnn")
    tested = objective.examples.test["label"].iloc[objective.chosen("test", 3)]
    assert by_name(objective, test_windows=3)["one answer to all"] == Counter(tested).most_common(1)[0][1] / 3


def test_the_floors_of_a_translation_are_frequencies_the_text_itself_and_word_by_word():
    words = ["the", "word", "number", "is", "Kaffee", "today"]
    sources = [" ".join([*words[: n % 6], *words[n % 6 + 1 :], "the", str(n)]) for n in range(30)]
    frame = pd.DataFrame({"source": sources, "target": [text.replace("the", "das") for text in sources]})
    config = Config(context=48, batch_size=4, tokenizer="bpe", vocabulary_size=300, test_windows=30)
    objective = make_objective(examples_of("pairs", [frame] * 3, "made by the test", "", language="ja"), config)
    floors = {each.name: each.value for each in objective.floors(config) if each.split == "test"}
    targets = [target[1:].tolist() for _, target in objective.sequences("test", range(30))]
    counts = Counter(token for target in targets for token in target)
    total = counts.total() + objective.vocabulary
    nats = -sum(n * math.log((counts[token] + 1) / total) for token, n in counts.items()) / counts.total()
    assert floors["unigram"] == pytest.approx(nats)
    assert floors["the text as it is"] == pytest.approx(corpus_bleu(sources, frame["target"].tolist(), "ja")[0])
    assert floors["the text as it is"] < 100  # one or two words of seven are others
    assert floors["word by word"] == pytest.approx(100)


@pytest.mark.parametrize(("name", "kinds"), [("recall-64", 32), ("copying-32", 10), ("s3-16", 6)])
def test_the_floor_of_generated_sequences_is_a_guess_among_all_answers(name, kinds):
    corpus = load_data(name)
    objective = make_objective(corpus, Config(context=corpus.sequences.length))
    assert by_name(objective) == {"guessing": 1 / kinds}
