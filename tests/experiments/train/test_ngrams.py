"""Interpolated Witten–Bell models against the definition over dictionaries."""

from collections import Counter

import numpy as np
import pytest

from experiments.train.counting import ORDERS, WittenBell


def defined(train, window, place, order, vocabulary):
    """p of a window's token at a place behind order - 1 tokens, by the definition."""
    if order == 0:
        return 1 / vocabulary
    below = defined(train, window, place, order - 1, vocabulary)
    if place < order - 1:
        return below
    context = window[place - order + 1 : place]
    behind = Counter(
        row[end] for row in train for end in range(order - 1, len(row)) if row[end - order + 1 : end] == context
    )
    if not behind:
        return below
    return (behind[window[place]] + len(behind) * below) / (behind.total() + len(behind))


@pytest.fixture
def windows():
    """Some that are alike, of 5 tokens of 7: trained on, and evaluated on."""
    draws = np.random.default_rng(0)
    return draws.choice(5, (40, 9), p=(0.5, 0.2, 0.1, 0.1, 0.1)), draws.choice(7, (6, 9))


@pytest.mark.parametrize("vocabulary", [7, 2**16])
def test_every_probability_is_that_of_the_definition(windows, vocabulary):
    train, tested = windows
    found = WittenBell(train, vocabulary).probabilities(tested)
    assert len(found) == ORDERS
    rows = train.tolist()
    for order, probabilities in enumerate(found, 1):
        expected = [
            [defined(rows, window, place, order, vocabulary) for place in range(1, len(window))]
            for window in tested.tolist()
        ]
        # At most six sums and quotients in float64.
        np.testing.assert_allclose(probabilities, expected, rtol=1e-12)


def test_the_probabilities_of_all_tokens_sum_to_one(windows):
    train, tested = windows
    model = WittenBell(train.astype(np.uint8), 7)
    for place in range(1, tested.shape[1]):
        total = np.zeros((ORDERS, len(tested)))
        for token in range(7):
            changed = tested.copy()
            changed[:, place] = token
            total += np.array(model.probabilities(changed))[:, :, place - 1]
        np.testing.assert_allclose(total, 1, rtol=1e-12)


def test_windows_shorter_than_an_order_have_the_orders_that_fit():
    losses = WittenBell(np.array([[0, 1, 0]]), 2).losses(np.array([[0, 1, 1]]))
    assert len(losses) == 3
    # One behind nothing: (1 + 2 / 2) / (3 + 2) for each of the two targets.
    assert losses[0] == pytest.approx(-np.log(0.4))
