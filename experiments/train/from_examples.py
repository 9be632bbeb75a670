"""What objectives of tables of examples share: the order in which an epoch has them, padding, and their tokenizer."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np

from experiments.data.examples import SPLITS, Examples
from experiments.data.generated import split_generator
from experiments.train.objectives import Batch, Objective
from experiments.train.tokens import PAD_ID, Ids, TextTokenizer

Numbers = Sequence[int] | np.ndarray
"""of examples"""

POOL = 50
"""batches whose examples are sorted by length before they are cut from one another: padding costs as much as tokens"""


class FromExamples(Objective):
    """Training on examples; an epoch goes through the training split in an order of its own."""

    tokenizer: TextTokenizer

    def __init__(self, examples: Examples, context: int, batch_size: int, tokenizer: TextTokenizer) -> None:
        super().__init__(examples, context, batch_size, tokenizer)
        self.examples = examples
        self._ids: dict[str, dict[int, tuple[Ids, ...]]] = {split: {} for split in SPLITS}
        self._order = lru_cache(maxsize=4)(self._epoch)

    @abstractmethod
    def batch_of(self, split: str, chosen: Numbers) -> Batch:
        """The batch of the examples of a split that have these numbers."""

    @abstractmethod
    def sequences(self, split: str, chosen: Numbers) -> Sequence[Sequence[Ids]]:
        """The sequences of each of these examples as they are read: begun, ended and cut."""

    def ids_of(self, split: str, chosen: Numbers) -> list[tuple[Ids, ...]]:
        """The ids of the texts of examples, made when they are first asked for: of a large test split few are."""
        known = self._ids[split]
        if new := [index for index in map(int, chosen) if index not in known]:
            columns = self.examples.texts(split).iloc[new].items()
            ids = [self.tokenizer.encode(column.tolist()) for _, column in columns]
            known.update(zip(new, zip(*ids, strict=True), strict=True))
        return [known[int(index)] for index in chosen]

    def lengths(self, split: str, chosen: Numbers) -> np.ndarray:
        """Tokens of the longest sequence of each."""
        return np.array([max(map(len, sequences)) for sequences in self.sequences(split, chosen)])

    def whole_lengths(self, split: str, chosen: Numbers) -> np.ndarray:
        """Tokens of each of these examples, by which those of a batch are alike."""
        return self.lengths(split, chosen)

    @cached_property
    def _sizes(self) -> np.ndarray:
        return self.whole_lengths("train", range(len(self.examples.train)))

    def _epoch(self, seed: int, epoch: int) -> np.ndarray:
        """The order in which an epoch has the training split; those of a batch are of about one length."""
        order, size = np.random.default_rng([seed, epoch]).permutation(len(self.examples.train)), self.batch_size
        # The batch at the end of the epoch before takes some of this one's examples.
        first = -epoch * len(order) % size
        last = len(order) - (len(order) - first) % size
        if last <= first:
            return order
        pools = (order[start : min(start + POOL * size, last)] for start in range(first, last, POOL * size))
        alike = np.concatenate([pool[np.argsort(self._sizes[pool], kind="stable")] for pool in pools])
        batches = np.random.default_rng([seed, epoch, 1]).permutation(alike.reshape(-1, size))
        return np.concatenate([order[:first], batches.ravel(), order[last:]])

    def batch(self, seed: int, step: int) -> Batch:
        """The next examples of the epoch; one that is not full is filled up from the epoch after it."""
        count = len(self.examples.train)
        places = range(step * self.batch_size, (step + 1) * self.batch_size)
        return self.batch_of("train", [self._order(seed, place // count)[place % count] for place in places])

    def read(self, steps: int) -> np.ndarray:
        """The numbers of the training examples that seed 0 reads in so many steps, each once."""
        return self._order(0, 0)[: steps * self.batch_size]

    def windows(self, split: str, count: int) -> Batch:
        """At most ``count`` examples of a split, drawn without replacement, the same every time; short ones first."""
        return self.batch_of(split, self.chosen(split, count))

    def chosen(self, split: str, count: int) -> np.ndarray:
        """The numbers of the examples that ``windows`` has, in its order."""
        order = split_generator(split).permutation(len(getattr(self.examples, split)))[:count]
        return order[np.argsort(self.lengths(split, order), kind="stable")]


def padded(rows: Sequence[Ids]) -> np.ndarray:
    """(B, N) int64: the rows, with PAD_ID behind those that are shorter than the longest."""
    found = np.full((len(rows), max(map(len, rows))), PAD_ID, np.int64)
    for place, row in zip(found, rows, strict=True):
        place[: len(row)] = row
    return found
