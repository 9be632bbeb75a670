"""What counting says of texts: n-grams of tokens, naive Bayes and overlaps of words, a dictionary learnt from pairs."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NAMES = ("unigram", "bigram", "trigram", "4-gram", "5-gram", "6-gram")
"""of the orders that are counted"""
ORDERS = len(NAMES)
ROUNDS = 5
"""of expectation and maximisation"""
MOST_LINKS = 2**24
"""of a word with one of its translation; pairs beyond so many are not read"""
Counts = npt.NDArray[np.int64]
Texts = Sequence[str]
Scores = npt.NDArray[np.float64]


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
    """Interpolated n-grams (Witten & Bell 1991; Bell, Cleary & Witten) counted in windows, none over the end of one.

    The probability of a token w behind the context c of n - 1 tokens is

        p(w | c) = (count(c w) + kinds(c) p(w | c')) / (count(c) + kinds(c))

    where kinds(c) counts the different tokens seen behind c, c' is c without its first token, and below order 1 all
    tokens are equally likely. Where c was never seen, or reaches over the beginning of the window, it is p(w | c').

    Args:
        windows: (B, N) whole numbers below ``vocabulary``.
        vocabulary: how many tokens there are.
    """

    def __init__(self, windows: npt.NDArray[np.integer], vocabulary: int) -> None:
        self.vocabulary, self.orders = vocabulary, list[Order]()
        numbers, contexts = np.zeros((len(windows), windows.shape[1] + 1), np.int64), 1
        for order in range(min(ORDERS, windows.shape[1])):
            keys = self._keys(numbers, windows, order)
            grams, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
            of_context = grams // vocabulary
            starts = np.searchsorted(of_context, np.arange(contexts + 1))
            totals = np.diff(np.append(0, counts.cumsum())[starts])
            self.orders.append(Order(grams, counts, np.append(totals, 0), np.append(np.diff(starts), 0)))
            numbers, contexts = places.reshape(keys.shape), len(grams)

    def probabilities(self, windows: npt.NDArray[np.integer]) -> list[Scores]:
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

    def losses(self, windows: npt.NDArray[np.integer]) -> list[float]:
        """By order, the mean loss in nats of all tokens of the windows but the first."""
        return [float(-np.log(each).mean()) for each in self.probabilities(windows)]

    def _keys(self, contexts: Counts, windows: npt.NDArray[np.integer], order: int) -> Counts:
        """What stands for the n-grams that end at each token from the one numbered ``order`` on."""
        return contexts[:, :-1] * self.vocabulary + windows[:, order:]


def words(text: str) -> list[str]:
    """Its words in lower case, without signs; a Chinese character is a word."""
    return re.findall(r"[一-鿿]|[^\W一-鿿]+", text.lower())


def naive_bayes(train: Texts, labels: Counts, test: Texts, classes: int, bigrams: bool) -> Counts:
    """The likeliest class of each text of ``test``: multinomial, one more than counted (Manning et al. 2008, ch. 13).

    Counted are words or, with ``bigrams``, words and pairs of neighbours; what was not seen is passed over.
    """
    known: dict[str, int] = {}
    counted = [[known.setdefault(each, len(known)) for each in _features(text, bigrams)] for text in train]
    of_class = np.repeat(labels, [*map(len, counted)]) * len(known)
    features = np.fromiter(chain.from_iterable(counted), np.int64)
    counts = 1 + np.bincount(of_class + features, minlength=classes * len(known)).reshape(classes, -1)
    weights = np.log(counts / counts.sum(1, keepdims=True))
    prior = np.log(1 + np.bincount(labels, minlength=classes))
    found = [[known[each] for each in _features(text, bigrams) if each in known] for text in test]
    return np.array([int((prior + weights[:, each].sum(1)).argmax()) for each in found])


def _features(text: str, bigrams: bool) -> list[str]:
    found = words(text)
    return found + [f"{one} {other}" for one, other in pairwise(found)] if bigrams else found


def overlap(first: Iterable[str], second: Iterable[str]) -> Scores:
    """Of each pair of texts: the words that both have, of those that either has (Jaccard); without words 0."""
    return np.array([len(one & other) / max(len(one | other), 1) for one, other in _pairs(first, second)])


def repeated(first: Iterable[str], second: Iterable[str]) -> Scores:
    """Of each pair of texts: the words of the first that the second has too, of those of the first; or 0."""
    return np.array([len(one & other) / max(len(one), 1) for one, other in _pairs(first, second)])


def _pairs(first: Iterable[str], second: Iterable[str]) -> Iterator[tuple[set[str], set[str]]]:
    return ((set(words(one)), set(words(other))) for one, other in zip(first, second, strict=True))


def word_by_word(sources: Iterable[str], targets: Iterable[str], texts: Iterable[str]) -> list[str]:
    """Each text with every word replaced by the likeliest one of the other language; unknown words and signs stay.

    The dictionary is of ``sources`` and their translations.
    """
    dictionary = learnt(zip(sources, targets, strict=True))
    return [re.sub(r"\w+", lambda word: dictionary.get(word[0], word[0]), text) for text in texts]


def learnt(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The likeliest translation of each word: t of IBM's first model (Brown et al. 1993).

    There every word is made by one of its source.

    t(f | e) begins equal for all, and in each round becomes the share of f in what e is expected to have made.
    """
    sources, targets = dict[str, int](), dict[str, int]()
    links, groups, made, total = list[Counts](), list[Counts](), 0, 0
    for source, target in pairs:
        first = np.array([sources.setdefault(word, len(sources)) for word in re.findall(r"\w+", source)], np.int64)
        second = np.array([targets.setdefault(word, len(targets)) for word in re.findall(r"\w+", target)], np.int64)
        links.append(((first << 32) + second[:, None]).ravel())
        groups.append(np.repeat(made + np.arange(len(second)), len(first)))
        made, total = made + len(second), total + len(links[-1])
        if total > MOST_LINKS:
            break
    known, of_link = np.unique(np.concatenate(links), return_inverse=True)
    group, source_of, target_of = np.concatenate(groups), known >> 32, known & (2**32 - 1)
    likelihood = np.ones(len(known))
    for _ in range(ROUNDS):
        share = likelihood[of_link]
        share /= np.bincount(group, share)[group]
        expected = np.bincount(of_link, share)
        likelihood = expected / np.bincount(source_of, expected)[source_of]
    best = np.lexsort((-likelihood, source_of))
    first_of_source = best[np.unique(source_of[best], return_index=True)[1]]
    names, other = list(sources), list(targets)
    return {names[source_of[place]]: other[target_of[place]] for place in first_of_source}
