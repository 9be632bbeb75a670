"""The type of a text: three arrays of bytes and the words that must stand beside its figures."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from experiments.data.examples import Content, Examples
from experiments.data.files import DataSet as DataSet
from experiments.records.schema import DataRecord

Bytes = npt.NDArray[np.uint8]
Tokens = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]

BETWEEN = b"\n\n"
"""what joins documents to a text; it belongs to the one before it"""
NOT_SCORED = -100
"""stands for a target that does not count; what PyTorch's cross_entropy leaves out"""


class Sequences(Protocol):
    """A generator of sequences to be predicted in part, such as recall and copying; a token is a byte here too."""

    @property
    def length(self) -> int:
        """Inputs of a sequence; it has one token more, the last target."""

    def draw(self, generator: np.random.Generator, count: int) -> Bytes:
        """So many new sequences as a model is evaluated on, of shape (count, length + 1)."""

    def draw_training(self, generator: np.random.Generator, count: int) -> Bytes:
        """So many new sequences as a model is trained on, of the same shape; some may be easier."""
        return self.draw(generator, count)

    def longer(self, factor: int) -> "Sequences":
        """The same task in sequences of ``factor`` times the length, for models to be tested on."""

    def targets(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What is to be predicted at each input, NOT_SCORED where nothing is; (B, length) of tokens (B, length + 1)."""


@dataclass(frozen=True, eq=False)
class Corpus(Content):
    """The bytes of a data set.

    Of generated ``sequences``, ``train`` is empty, because every training batch is drawn anew, and the other splits
    hold one sequence after another.
    """

    train: Bytes
    validation: Bytes
    test: Bytes
    sequences: Sequences | None = None
    """what generates it; None for a text"""
    documents: npt.NDArray[np.int64] | None = None
    """where each document of the whole content begins, in order; None for a text that is not made of documents"""

    def describe(self) -> DataRecord:
        """What a record of a run keeps about its data. Sizes are in bytes."""
        return self._record(len(self.train) + len(self.validation) + len(self.test), "bytes")


Data = Corpus | Examples


def corpus_of_text(
    name: str,
    content: bytes | Bytes,
    source: str = "made by its own code",
    note: str = "Split 90/5/5: compare figures of equal sha256 only.",
    expected_sha256: str | None = None,
    documents: npt.NDArray[np.int64] | None = None,
) -> Corpus:
    """``content`` as a corpus: its first 90 %, the next 5 % and the rest, rounded down.

    Raises ValueError if it is empty, or if its sha256 is not the one expected.
    """
    array = np.frombuffer(content, dtype=np.uint8) if isinstance(content, bytes) else content
    if not len(array):
        raise ValueError(f"--data {name}: {source} is empty; give a file with text in it")
    train, validation, test = np.split(array, [len(array) * 90 // 100, len(array) * 95 // 100])
    corpus = corpus_of_splits(name, (train, validation, test), source, note, documents=documents)
    if expected_sha256 not in (None, corpus.sha256):
        what = f"is damaged or another file (sha256 {corpus.sha256}, expected {expected_sha256})"
        raise ValueError(f"--data {name}: {source} {what}; replace or remove it")
    return corpus


def corpus_of_splits(name: str, splits: Iterable[Bytes], source: str, note: str, **others: Any) -> Corpus:
    """A corpus of training, validation and test bytes; maybe with its ``documents`` or ``sequences``."""
    train, validation, test = splits
    digest = hashlib.sha256()
    for split in (train, validation, test):
        digest.update(split.data)
    return Corpus(name, train, validation, test, digest.hexdigest(), source, note, **others)


def begins(lengths: Iterable[int]) -> npt.NDArray[np.int64]:
    """Where documents of these lengths begin, one behind the other."""
    return np.cumsum([0, *lengths], dtype=np.int64)[:-1]
