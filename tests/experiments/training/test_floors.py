"""What an answer has that knows nothing of the input, against sums by hand and models that know nothing."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from experiments.config import Config
from experiments.data.associative_recall import DATA_SETS
from experiments.data.corpus import corpus_of_text
from experiments.data.examples import examples_of
from experiments.training.chosen_objective import make_objective
from experiments.training.loop import evaluate

TEXT = ("a man and a dog walk by the old river and the man sings. " * 60 + "The dog barks at the moon. " * 60).encode()
SIZES = {"context": 16, "batch_size": 4, "test_windows": 9}


class Frequencies(nn.Module):
    """Gives every token the logarithm of its frequency, whatever it reads; shaped as the objective's model."""

    def __init__(self, counts, shape_of):
        super().__init__()
        self.logits = nn.Parameter((counts / counts.sum()).log())
        self.shape_of = shape_of

    def forward(self, *inputs):
        return self.logits.expand(*self.shape_of(*inputs), -1)


@pytest.mark.parametrize(
    ("settings", "shape_of"),
    [
        ({}, lambda inputs: inputs.shape),
        ({"tokenizer": "bpe", "vocabulary_size": 280}, lambda inputs: inputs.shape),
        (
            {"tokenizer": "wordpiece", "vocabulary_size": 300, "objective": "masked"},
            lambda inputs, at: (int(at.sum()),),
        ),
    ],
)
def test_the_floor_of_a_text_is_the_loss_of_a_model_of_frequencies(settings, shape_of):
    config = Config(**SIZES, **settings)
    objective = make_objective(corpus_of_text("text", TEXT), config)
    seen = np.bincount(objective.splits["train"], minlength=objective.vocabulary)
    model = Frequencies(torch.tensor(seen + 1, dtype=torch.float64), shape_of)
    found = evaluate(model, objective, "test", config.test_windows, config)
    floor = objective.floors(config.test_windows)
    # A batch that is not full weighs as much: sums of some hundred losses in float64, of about 5 each.
    assert floor == pytest.approx({objective.primary.name: found[objective.primary.name]}, rel=1e-9)


def labelled(name, labels, classes):
    """Pairs of texts with these labels in every split."""
    frame = pd.DataFrame({"first": "some words", "second": [f"{n} more" for n in range(len(labels))], "label": labels})
    config = Config(context=16, batch_size=4, tokenizer="wordpiece", vocabulary_size=300)
    return make_objective(examples_of(name, [frame] * 3, "made by the test", "", classes), config)


@pytest.mark.parametrize(
    ("name", "labels", "floor"),
    [
        ("other", "yyyn", {"accuracy": 0.75}),
        ("other", "nnnny", {"accuracy": 0.8}),
        # All positive: precision is the share of positives p, recall 1, so F1 = 2p / (1 + p).
        ("mrpc", "yyyn", {"f1": 1.5 / 1.75}),
        ("mrpc", "nnnny", {"f1": 0.4 / 1.2}),
        ("cola", "yyyn", {"matthews": 0.0}),
    ],
)
def test_the_floor_of_classes_is_the_best_constant_answer(name, labels, floor):
    objective = labelled(name, list(labels), ("n", "y"))
    assert objective.floors(10) == pytest.approx(floor)


def test_the_floor_of_scores_is_no_correlation():
    assert labelled("sts-b", [0.0, 1.0, 5.0, 2.5], ()).floors(10) == {"spearman": 0.0}


def test_the_floor_is_of_the_examples_that_are_tested():
    objective = labelled("other", list("ynnynnnynnn"), ("n", "y"))
    tested = objective.examples.test["label"].iloc[objective.chosen("test", 3)]
    assert objective.floors(3) == {"accuracy": Counter(tested).most_common(1)[0][1] / 3}


def test_the_floors_of_a_translation_are_frequencies_and_the_text_itself():
    pytest.importorskip("sacrebleu")
    sources = [f"the word number {n} is Kaffee today" for n in range(30)]
    frame = pd.DataFrame({"source": sources, "target": [text.replace("the", "das") for text in sources]})
    config = Config(context=48, batch_size=4, tokenizer="bpe", vocabulary_size=300)
    objective = make_objective(examples_of("pairs", [frame] * 3, "made by the test", ""), config)
    floors = objective.floors(30)
    targets = [target[1:].tolist() for _, target in objective._tokens["test"]]
    counts = Counter(token for target in targets for token in target)
    total = counts.total() + objective.vocabulary
    nats = -sum(n * math.log((counts[token] + 1) / total) for token, n in counts.items()) / counts.total()
    assert floors["nats_per_token"] == pytest.approx(nats)
    assert 50 < floors["bleu"] < 100  # one word of seven is another


def test_generated_sequences_have_none():
    data_set = DATA_SETS[0]
    corpus = data_set.load(None, None)
    objective = make_objective(corpus, Config(context=corpus.sequences.length))
    assert objective.floors(4) == {}
