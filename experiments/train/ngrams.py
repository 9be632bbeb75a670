"""Interpolated Witten–Bell models of n-grams: what counting says of a text (Witten & Bell 1991; Bell, Cleary & Witten).

The probability of a token w behind the context c of n - 1 tokens is

    p(w | c) = (count(c w) + kinds(c) p(w | c')) / (count(c) + kinds(c))

where kinds(c) counts the different tokens seen behind c, c' is c without its first token, and below order 1 all tokens
are equally likely. Where c was never seen, or reaches over the beginning of the window, p(w | c) is p(w | c').
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

ORDERS = 6
NAMES = ("unigram", "bigram", "trigram", "4-gram", "5-gram", "6-gram")
Integers = npt.NDArray[np.integer]
Counts = npt.NDArray[np.int64]


class Order(NamedTuple):
    """The counted n-grams of an order. A context is numbered as it is among the n-grams of the order below."""

    grams: Counts
    """sorted: the number of the context times the size of the vocabulary, plus the token"""
    counts: Counts
    """of each of these"""
    totals: Counts
    """by context, its tokens; and 0 for those that were not seen, whose number is -1"""
    kinds: Counts
    """by context, its different tokens; the same"""


class WittenBell:
    """N-grams counted in windows, none over the end of one.

    Args:
        windows: (B, N) whole numbers below ``vocabulary``.
        vocabulary: how many tokens there are.
        orders: the highest order; at most N.
    """

    def __init__(self, windows: Integers, vocabulary: int, orders: int = ORDERS) -> None:
        self.vocabulary, self.orders = vocabulary, list[Order]()
        numbers, contexts = np.zeros((len(windows), windows.shape[1] + 1), np.int64), 1
        for order in range(min(orders, windows.shape[1])):
            keys = self._keys(numbers, windows, order)
            grams, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
            of_context = grams // vocabulary
            starts = np.searchsorted(of_context, np.arange(contexts + 1))
            totals = np.diff(np.append(0, counts.cumsum())[starts])
            self.orders.append(Order(grams, counts, np.append(totals, 0), np.append(np.diff(starts), 0)))
            numbers, contexts = places.reshape(keys.shape), len(grams)

    def probabilities(self, windows: Integers) -> list[npt.NDArray[np.float64]]:
        """By order, what each token of the windows (B, N) but the first is given behind those before it, (B, N - 1)."""
        probability = np.full(windows.shape, 1 / self.vocabulary)
        numbers, found = np.zeros((len(windows), windows.shape[1] + 1), np.int64), []
        for order, (grams, counts, totals, kinds) in enumerate(self.orders):
            keys = self._keys(numbers, windows, order)
            places = np.minimum(np.searchsorted(grams, keys), len(grams) - 1)
            is_known, context = grams[places] == keys, keys // self.vocabulary
            total, different, below = totals[context], kinds[context], probability[:, order:]
            count = np.where(is_known, counts[places], 0)
            mixed = (count + different * below) / np.maximum(total + different, 1)
            probability[:, order:] = np.where(total > 0, mixed, below)
            numbers = np.where(is_known, places, -1)
            found.append(probability[:, 1:].copy())
        return found

    def losses(self, windows: Integers) -> list[float]:
        """By order, the mean loss in nats of all tokens of the windows but the first."""
        return [float(-np.log(each).mean()) for each in self.probabilities(windows)]

    def _keys(self, contexts: Counts, windows: Integers, order: int) -> Counts:
        """What stands for the n-grams that end at each token from the one numbered ``order`` on."""
        return contexts[:, :-1] * self.vocabulary + windows[:, order:]
