"""Predicting hidden tokens: what is hidden, what counts, and how it is kept on record."""

import math

import numpy as np
import pytest
import torch

from experiments.data.corpus import NOT_SCORED
from experiments.train.tokens import BEGIN_ID, END_ID, MASK_ID, SPECIAL
from linear_rope.heads import MaskedLM
from linear_rope.model_config import ModelConfig
from tests.experiments.train.tasks import task_of

CONTEXT = 34


@pytest.fixture(scope="module")
def task():
    return task_of("masked", context=CONTEXT, batch_size=16)


def test_fifteen_percent_are_hidden_four_fifths_of_them_masked(task):
    inputs, targets = (torch.cat(parts) for parts in zip(*(task.batch(0, step) for step in range(400)), strict=True))
    inside, wanted = inputs[:, 1:-1], targets[:, 1:-1]
    hidden = wanted != NOT_SCORED
    # Of n draws a share is within 4 standard deviations of its probability.
    for share, probability, n in (
        (hidden, 0.15, hidden.numel()),
        (inside[hidden] == MASK_ID, 0.8, int(hidden.sum())),
        (inside[hidden] == wanted[hidden], 0.1 + 0.1 / (task.vocabulary - len(SPECIAL)), int(hidden.sum())),
    ):
        assert abs(share.double().mean() - probability) < 4 * math.sqrt(probability * (1 - probability) / n)
    assert (inputs[:, 0] == BEGIN_ID).all()
    assert (inputs[:, -1] == END_ID).all()
    assert (targets[:, [0, -1]] == NOT_SCORED).all()
    assert hidden.any(1).all()
    # A tenth of them is another token, any but those with a meaning of their own.
    others = inside[hidden & (inside != MASK_ID) & (inside != wanted)]
    assert {*others.tolist()} == {*range(len(SPECIAL), task.vocabulary)}


def test_what_is_hidden_is_the_text_s(task):
    for inputs, targets in (task.batch(3, 5), task.windows("test", 8)):
        whole = torch.where(targets == NOT_SCORED, inputs, targets)[:, 1:-1].numpy()
        split = task.splits["test" if len(inputs) == 8 else "train"]
        rows = np.lib.stride_tricks.sliding_window_view(split, CONTEXT - 2)
        assert all((rows == row).all(1).any() for row in whole)


def test_the_loss_and_the_metrics_are_of_hidden_tokens_alone(task):
    model = MaskedLM(ModelConfig(vocab_size=task.vocabulary, dim=16, layers=1, heads=2, feature_map="elu+1"))
    inputs, targets = batch = task.windows("test", 6)
    logits = model(inputs).log_softmax(-1)
    at = targets != NOT_SCORED
    expected = -logits[at].gather(1, targets[at][:, None]).mean()
    torch.testing.assert_close(task.loss(model, batch), expected)
    metrics = task.metrics(task.tally(model, batch))
    assert metrics["nats_per_masked_token"] == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["accuracy"] == (logits.argmax(-1)[at] == targets[at]).double().mean().item()
