"""Sequences that are generated, to be predicted in part: recall, copying, induction and state tracking."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.data.corpus import NOT_SCORED, Bytes, Corpus, Sequences, corpus_of_splits
from experiments.data.examples import SPLITS
from experiments.data.files import Files

VALIDATION_SEQUENCES, TEST_SEQUENCES = 1000, 3000
"""as many test examples as in Zoology"""
POWER = 0.01
"""a of the power law by which the asked keys are placed, as in Zoology"""
COPIED = 10
SEPARATOR, FILLER = COPIED, COPIED + 1
SYMBOLS = 16
MARK = SYMBOLS
GROUPS = {"parity": (2, False), "s3": (3, False), "a5": (5, True), "s5": (5, False)}
"""what is permuted, and whether only even permutations count"""


def split_generator(split: str, seed: int = 0, step: int = 0) -> np.random.Generator:
    """The random numbers of a split; those of the training split differ from seed to seed and step to step."""
    return np.random.default_rng([SPLITS.index(split), seed, step])


@dataclass(frozen=True)
class AssociativeRecall:
    """Multi-query associative recall (Arora et al. 2023, arXiv 2312.04927): which value stood beside this key?

    Sequences of ``length`` inputs and one token more.

    * Keys are the first half of the vocabulary, values the second. Tokens 0 to 2·pairs - 1 are pairs of a key and its
      value; a sequence's keys are all different, and so are its values.
    * Behind them are slots of two tokens, numbered from 1. Each key is put at the beginning of a slot of its own; slot
      i is drawn with a probability proportional to i^(a - 1), without replacement, in the order of the pairs. So most
      keys are asked soon and some late.
    * All other tokens are drawn uniformly from the whole vocabulary but the sequence's own keys, those behind an asked
      key too: the answers do not stand in the sequence. (If they did, a model could guess among the values that are
      not yet told, which is right half of the time with four pairs.)
    * The target at an asked key is its value. Nothing else is scored.
    * In training, equal shares of the sequences have all pairs, half of them, a quarter and so on down to one. Where a
      pair is missing stand two random values. Zoology mixes easier sequences in too; without them small models guess
      among the values that they have seen for thousands of steps before they begin to recall.

    That is Zoology's construction with these differences: the vocabulary has at most 256 tokens and not 8,192; a filler
    is never one of the sequence's keys, which there happens by chance; and training sequences are drawn anew for every
    step, where Zoology goes over 100,000 again and again.

    Raises:
        ValueError: the pairs do not fit into the length or the vocabulary.
    """

    length: int
    pairs: int
    vocabulary: int = 256

    def __post_init__(self) -> None:
        if self.pairs < 1 or 4 * self.pairs > self.length:
            raise ValueError(f"pairs is {self.pairs}; give 1 to {self.length // 4}, a quarter of the length")
        if not 2 * self.pairs <= self.vocabulary <= 256:
            raise ValueError(f"vocabulary is {self.vocabulary}; give {2 * self.pairs} to 256")

    def longer(self, factor: int) -> "AssociativeRecall":
        """As many pairs in a longer sequence."""
        return replace(self, length=factor * self.length)

    def draw(self, generator: np.random.Generator, count: int) -> Bytes:
        return self.draw_pairs(generator, count, self.pairs)

    def draw_training(self, generator: np.random.Generator, count: int) -> Bytes:
        numbers = [self.pairs // 2**halvings for halvings in range(self.pairs.bit_length())]
        shares = np.bincount(np.arange(count) % len(numbers), minlength=len(numbers))
        drawn = [self.draw_pairs(generator, share, pairs) for share, pairs in zip(shares, numbers, strict=True)]
        return np.concatenate(drawn)

    def draw_pairs(self, generator: np.random.Generator, count: int, pairs: int) -> Bytes:
        """Sequences with fewer pairs, or as many, at the beginning of the place that all pairs have."""
        half, begin = self.vocabulary // 2, 2 * self.pairs
        keys, others = np.split(_orders(generator, count, half), [pairs], axis=1)
        values = half + _orders(generator, count, half)[:, :pairs]

        every_value = np.broadcast_to(np.arange(half, 2 * half, dtype=np.uint8), (count, half))
        fillers = np.concatenate([others, every_value], axis=1)
        chosen = generator.integers(0, fillers.shape[1], (count, self.length + 1))
        tokens = np.take_along_axis(fillers, chosen, axis=1)

        tokens[:, :begin] = generator.integers(half, 2 * half, (count, begin))
        tokens[:, 0 : 2 * pairs : 2] = keys
        tokens[:, 1 : 2 * pairs : 2] = values
        # The slot of each key, from 0: the largest of log p + Gumbel noise are a sample without replacement, in order.
        slots = (self.length - begin) // 2
        log_probability = (POWER - 1) * np.log(np.arange(1, slots + 1))
        drawn = (-log_probability - generator.gumbel(size=(count, slots))).argsort(axis=1)
        np.put_along_axis(tokens, begin + 2 * drawn[:, :pairs], keys, axis=1)
        return tokens

    def targets(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The value of each key that is there for the second time."""
        begin = 2 * self.pairs
        is_key = tokens < self.vocabulary // 2
        asked = (tokens[:, begin:-1, None] == tokens[:, None, 0:begin:2]) & is_key[:, begin:-1, None]
        values = np.take_along_axis(tokens[:, 1:begin:2], asked.argmax(axis=-1), axis=1)
        targets = np.full((len(tokens), self.length), NOT_SCORED)
        targets[:, begin:] = np.where(asked.any(axis=-1), values, NOT_SCORED)
        return targets


def _orders(generator: np.random.Generator, count: int, among: int) -> Bytes:
    """So many random orders of the numbers below ``among``, of shape (count, among)."""
    return generator.random((count, among)).argsort(axis=1).astype(np.uint8)


@dataclass(frozen=True)
class Copying(Sequences):
    """Copying (Katharopoulos et al. 2020, arXiv 2006.16236).

    Sequences w | w of ten symbols, where w has half of ``longest`` to ``longest`` of them, drawn uniformly.

    What is left of 2·longest + 1 tokens is filled up at the end. Scored are the symbols behind the separator. The paper
    says that its sequences have ten symbols, a separator and at most 128 tokens; here 128 is the length of w, and w is
    never shorter than half of it, so that no sequence that a model is evaluated on is seen in training.
    """

    longest: int

    @property
    def length(self) -> int:
        return 2 * self.longest

    def longer(self, factor: int) -> "Copying":
        return replace(self, longest=factor * self.longest)

    def draw(self, generator: np.random.Generator, count: int) -> Bytes:
        symbols = generator.integers(0, COPIED, (count, self.longest), dtype=np.uint8)
        lengths = generator.integers(self.longest // 2, self.longest, (count, 1), endpoint=True)
        places = np.arange(self.length + 1)
        tokens = np.where(places < lengths, np.pad(symbols, ((0, 0), (0, self.longest + 1))), FILLER)
        repeated = np.take_along_axis(symbols, np.clip(places - lengths - 1, 0, self.longest - 1), axis=1)
        tokens = np.where((lengths < places) & (places <= 2 * lengths), repeated, tokens)
        return np.where(places == lengths, SEPARATOR, tokens).astype(np.uint8)

    def targets(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The symbols behind the separator."""
        behind = np.cumsum(tokens[:, :-1] == SEPARATOR, axis=1) > 0
        return np.where(behind & (tokens[:, 1:] != FILLER), tokens[:, 1:], NOT_SCORED)


@dataclass(frozen=True)
class Induction(Sequences):
    """Induction (Fu et al. 2022, arXiv 2212.14052; Olsson et al. 2022).

    Sixteen symbols drawn uniformly, with a mark at a place drawn uniformly and again as the last input.

    The target there is the symbol behind the first mark; nothing else is scored. So guessing is right for a sixteenth.
    Mamba (arXiv 2312.00752) trains on 256 such tokens and tests on up to a million.
    """

    length: int = 64

    def longer(self, factor: int) -> "Induction":
        return replace(self, length=factor * self.length)

    def draw(self, generator: np.random.Generator, count: int) -> Bytes:
        tokens = generator.integers(0, SYMBOLS, (count, self.length + 1), dtype=np.uint8)
        rows, marks = np.arange(count), generator.integers(0, self.length - 2, count)
        tokens[rows, marks] = tokens[:, -2] = MARK
        tokens[:, -1] = tokens[rows, marks + 1]
        return tokens

    def targets(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The last token."""
        targets = np.full((len(tokens), self.length), NOT_SCORED)
        targets[:, -1] = tokens[:, -1]
        return targets


@dataclass(frozen=True)
class StateTracking(Sequences):
    """State tracking (Merrill et al. 2024, arXiv 2404.08819).

    Elements of a group, drawn uniformly; the target at each is the product of all up to it.

    Elements are numbered in the order of their permutations, the identity is 0.
    """

    group: str
    length: int = 64

    def longer(self, factor: int) -> "StateTracking":
        return replace(self, length=factor * self.length)

    @cached_property
    def products(self) -> npt.NDArray[np.int64]:
        """[a, b]: first b, then a."""
        objects, only_even = GROUPS[self.group]
        elements = [p for p in permutations(range(objects)) if not (only_even and _is_odd(p))]
        number = {element: place for place, element in enumerate(elements)}
        return np.array([[number[tuple(a[i] for i in b)] for b in elements] for a in elements])

    def draw(self, generator: np.random.Generator, count: int) -> Bytes:
        return generator.integers(0, len(self.products), (count, self.length + 1), dtype=np.uint8)

    def targets(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        found = tokens[:, :-1].copy()
        for place in range(1, found.shape[1]):
            found[:, place] = self.products[found[:, place], found[:, place - 1]]
        return found


def _is_odd(permutation: tuple[int, ...]) -> bool:
    size = len(permutation)
    return sum(permutation[i] > permutation[j] for i in range(size) for j in range(i + 1, size)) % 2 == 1


TASKS: dict[str, Callable[..., Sequences]] = {
    "recall": AssociativeRecall,
    "copying": Copying,
    "induction": Induction,
    "state-tracking": StateTracking,
}


@dataclass(frozen=True, kw_only=True)
class Generated(Files):
    """A generator's validation and test, always the same sequences; its sha256 is that of the two."""

    task: str
    """in ``TASKS``"""
    arguments: Mapping[str, Any]

    def load(self, *_: Path | None) -> Corpus:
        sequences = TASKS[self.task](**self.arguments)
        validation = sequences.draw(split_generator("validation"), VALIDATION_SEQUENCES).ravel()
        test = sequences.draw(split_generator("test"), TEST_SEQUENCES).ravel()
        source = "generated: 1,000 validation and 3,000 test sequences from fixed seeds"
        note = (
            f"{self.note} Training sequences are drawn anew for every step, apart from those it is evaluated on; "
            "losses and accuracies are of the scored tokens alone."
        )
        splits = np.empty(0, np.uint8), validation, test
        return corpus_of_splits(self.name, splits, source, note, sequences=sequences)
