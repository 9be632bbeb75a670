"""Translating word by word with a dictionary that is learnt from pairs: IBM's first model (Brown et al. 1993)."""

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

ROUNDS = 5
"""of expectation and maximisation"""
MOST_LINKS = 2**24
"""of a word with one of its translation; pairs beyond so many are not read"""


def written_words(text: str) -> list[str]:
    """Its words, without signs, as they are written."""
    return re.findall(r"\w+", text)


def word_by_word(sources: Iterable[str], targets: Iterable[str], texts: Iterable[str]) -> list[str]:
    """Each text with every word replaced by the likeliest one of the other language; unknown words and signs stay.

    The dictionary is of ``sources`` and their translations.
    """
    dictionary = learnt(zip(sources, targets, strict=True))
    return [re.sub(r"\w+", lambda word: dictionary.get(word[0], word[0]), text) for text in texts]


def learnt(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The likeliest translation of each word: t of the first model, where every word is made by one of its source.

    t(f | e) begins equal for all, and in each round becomes the share of f in what e is expected to have made.
    """
    sources, targets = dict[str, int](), dict[str, int]()
    links, groups, made, total = list[npt.NDArray[np.int64]](), list[npt.NDArray[np.int64]](), 0, 0
    for source, target in pairs:
        first = np.array([sources.setdefault(word, len(sources)) for word in written_words(source)], np.int64)
        second = np.array([targets.setdefault(word, len(targets)) for word in written_words(target)], np.int64)
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
