"""What counting words says of labelled texts: naive Bayes of one text, the overlap of two."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

Texts = Sequence[str]
Numbers = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]


def words(text: str) -> list[str]:
    """Its words in lower case, without signs; a Chinese character is a word."""
    return re.findall(r"[一-鿿]|[^\W一-鿿]+", text.lower())


def naive_bayes(train: Texts, labels: Numbers, test: Texts, classes: int, bigrams: bool) -> Numbers:
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
