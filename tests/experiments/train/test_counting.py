"""What counting says of texts, against the definition over dictionaries and what is worked out by hand."""

from collections import Counter
from math import log

import numpy as np
import pytest

from experiments.train.counting import ORDERS, WittenBell, naive_bayes, overlap, repeated, word_by_word


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


def test_windows_shorter_than_an_order_have_the_orders_that_fit():
    losses = WittenBell(np.array([[0, 1, 0]]), 2).losses(np.array([[0, 1, 1]]))
    assert len(losses) == 3
    # One behind nothing: (1 + 2 / 2) / (3 + 2) for each of the two targets.
    assert losses[0] == pytest.approx(-np.log(0.4))


def test_naive_bayes_weighs_each_word_by_its_share_in_a_class():
    # Good: 3 of 3 words and 1 of 3 + 4 · 1 kinds ... of class 0: good 2, film 1; of class 1: bad 1, film 2.
    train, labels = ["Good, good film", "bad film film"], np.array([0, 1])
    # film: log 2/6 against log 3/6; good: 3/6 against 1/6; bad: 1/6 against 2/6. "new" was not seen.
    assert log(2 / 6) + log(3 / 6) > log(3 / 6) + log(1 / 6)
    assert 2 * log(2 / 6) + log(3 / 6) + log(1 / 6) < 2 * log(3 / 6) + log(1 / 6) + log(2 / 6)
    found = naive_bayes(train, labels, ["new good film", "film film good bad", "film"], 2, bigrams=False)
    assert found.tolist() == [0, 1, 1]


def test_bigrams_tell_an_order_that_words_do_not():
    train, labels = ["not bad", "bad not"], np.array([0, 1])
    assert naive_bayes(train, labels, ["not bad", "bad not"], 2, bigrams=True).tolist() == [0, 1]
    assert naive_bayes(train, labels, ["not bad", "bad not"], 2, bigrams=False).tolist() == [0, 0]


def test_the_more_frequent_class_wins_where_words_say_nothing():
    assert naive_bayes(["a", "a", "a"], np.array([0, 1, 1]), ["b", ""], 2, bigrams=False).tolist() == [1, 1]


def test_the_words_of_pairs():
    pairs = ["The cat", "A b", "", "法院"], ["the dog sat", "a, B!", "", "法官"]
    assert overlap(*pairs) == pytest.approx([1 / 4, 1, 0, 1 / 3])
    assert repeated(*pairs) == pytest.approx([1 / 2, 1, 0, 1 / 2])


def test_a_dictionary_is_learnt_though_no_word_stands_alone():
    sources = ["the house", "the book", "a book"]
    targets = ["das Haus", "das Buch", "ein Buch"]
    assert word_by_word(sources, targets, ["a house, the book new."]) == ["ein Haus, das Buch new."]
