"""Multi-query associative recall (MQAR): which value stood beside this key? (Arora et al. 2023, arXiv 2312.04927)

A sequence begins with key-value pairs. Later each key comes once more, and there its value is to be predicted. A model
has to find the earlier place where the key stood and say what followed it.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from experiments.data.corpus import NOT_SCORED, Bytes, DataSet
from experiments.data.synthetic import sequences_data_set

POWER = 0.01
"""a of the power law by which the asked keys are placed, as in Zoology"""
SIZES = {64: (4, 64), 128: (8, 64), 256: (16, 128), 512: (64, 256)}
"""length: pairs, as in Zoology, and tokens of the vocabulary"""
FULL = 256, 64, 256
"""length, pairs and vocabulary of the set with as many pairs as fit: training has 1 to 64 of them"""


@dataclass(frozen=True)
class AssociativeRecall:
    """Sequences of ``length`` inputs and one token more.

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


def _data_set(length: int, pairs: int, vocabulary: int, end: str = "") -> DataSet:
    size = f"{pairs} key-value pairs in {length} tokens"
    return sequences_data_set(
        f"recall-{length}{end}",
        f"Multi-query associative recall: {size}, a vocabulary of {vocabulary}.",
        AssociativeRecall(length, pairs, vocabulary),
        f"Multi-query associative recall after Zoology (Arora et al. 2023): {size}, its length and number of pairs, "
        f"with a vocabulary of {vocabulary} tokens where Zoology has 8,192; in training also fewer pairs.",
    )


DATA_SETS = (*(_data_set(length, *size) for length, size in SIZES.items()), _data_set(*FULL, "-full"))
