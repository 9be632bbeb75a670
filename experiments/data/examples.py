"""Labelled examples: tables of texts and what is to be said of them, split for training, validation and test."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from experiments.data.files import Files, told
from experiments.records.schema import DataRecord

if TYPE_CHECKING:  # pandas takes long to import, and most commands need none of it
    import pandas as pd

Kind = Literal["text", "pair", "triplet", "translation"]

COLUMNS: dict[Kind, tuple[str, ...]] = {
    "text": ("text", "label"),
    "pair": ("first", "second", "label"),
    "triplet": ("text", "one", "other", "label"),
    "translation": ("source", "target"),
}
"""of each kind: columns of text, and ``label`` behind them"""
NEARER = ("one", "other")
"""classes of triplets: which text is nearer to ``text``"""
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Content:
    """What a data set has: a text (``Corpus``) or labelled examples, split for training, validation and test."""

    name: str
    train: Any
    validation: Any
    test: Any
    sha256: str
    """of the whole content: train, validation and test in that order"""
    source: str
    """where the content was found, in words"""
    note: str
    """what must stand beside every figure of this data set"""
    objective: Callable[..., Any] | None = None
    """its data set's"""

    def _record(self, size: int, unit: Literal["bytes", "examples"]) -> DataRecord:
        splits = {split: len(getattr(self, split)) for split in SPLITS}
        words = {name: getattr(self, name) for name in ("name", "sha256", "source", "note")}
        return DataRecord(**words, bytes=size, splits=splits, unit=unit)


@dataclass(frozen=True, eq=False)
class Examples(Content):
    """Examples of one kind, a row each; ``examples_of`` makes them. Its sha256 is of each row as a JSON list.

    The columns are those of ``COLUMNS``, all of them text but a ``label`` that is a score, which is a float. Another
    label is the name of a class. Rows are numbered from 0.
    """

    train: "pd.DataFrame"
    validation: "pd.DataFrame"
    test: "pd.DataFrame"
    classes: tuple[str, ...] = ()
    """the names that ``label`` may have, in a fixed order; none where labels are scores or there are none"""
    language: str = ""
    """of the targets of translations, as in ISO 639-1; none says that words are separated by spaces"""

    @property
    def kind(self) -> Kind:
        return _kind(self.train)

    def texts(self, split: str) -> "pd.DataFrame":
        """The columns of text of a split."""
        return getattr(self, split).drop(columns="label", errors="ignore")

    def labels(self, split: str) -> npt.NDArray[np.int64] | npt.NDArray[np.float64]:
        """The labels of a split: numbers of ``classes`` as int64, or scores as float64. A translation has none."""
        column = getattr(self, split)["label"]
        if not self.classes:
            return column.to_numpy(np.float64)
        return column.map({name: number for number, name in enumerate(self.classes)}).to_numpy(np.int64)

    def first(self, count: int) -> "Examples":
        """The same with at most ``count`` examples to train on: the first of that split in the order of ``mixed``.

        Its sha256 stays that of the whole content.
        """
        there = len(self.train)
        if count >= there:
            return self
        note = f"{self.note} Trained on {count:,} of the {there:,} examples of the training split."
        return replace(self, train=mixed(self.train)[:count], note=note)

    def describe(self) -> DataRecord:
        """What a record of a run keeps about its data; its splits are counted in examples."""
        texts = (text for split in SPLITS for _, column in self.texts(split).items() for text in column)
        return self._record(sum(len(text.encode()) for text in texts), "examples")


def examples_of(
    name: str,
    splits: "Sequence[pd.DataFrame]",
    source: str,
    note: str,
    classes: tuple[str, ...] = (),
    language: str = "",
) -> Examples:
    """Examples of three tables with the same columns: train, validation and test.

    Raises ValueError if a split has no rows, the columns are those of no kind, or a label is not of ``classes``.
    """
    kind, digest, encode = _kind(splits[0]), hashlib.sha256(), msgspec.json.Encoder().encode
    for split, frame in zip(SPLITS, splits, strict=True):
        if tuple(frame.columns) != COLUMNS[kind]:
            raise ValueError(f"--data {name}: {split} has other columns than train; give {', '.join(COLUMNS[kind])}")
        if frame.empty:
            raise ValueError(f"--data {name} ({source}): the {split} split has no examples; give a larger file")
        if unknown := set(frame["label"]) - set(classes) if classes else None:
            raise ValueError(f"--data {name}: label {min(unknown)!r} is no class; give {' or '.join(classes)}")
        for row in frame.itertuples(index=False, name=None):
            digest.update(encode(row))
    train, validation, test = (frame.reset_index(drop=True) for frame in splits)
    sha256 = digest.hexdigest()
    return Examples(name, train, validation, test, sha256, source, note, classes=classes, language=language)


def _kind(frame: "pd.DataFrame") -> Kind:
    for kind, columns in COLUMNS.items():
        if tuple(frame.columns) == columns:
            return kind
    raise ValueError(f"the columns are {list(frame.columns)}; give those of a kind: {list(COLUMNS.values())}")


@dataclass(frozen=True, kw_only=True)
class ExampleFiles(Files):
    """Files of examples; what is derived from it makes ``splits`` of them."""

    classes: Mapping[str, str] | Sequence[str] = ()
    """what labels of a file are called; those of a list keep their names. None where they are scores"""
    language: str = ""
    """of the targets, as in ISO 639-1; BLEU of some needs another tokenizer"""

    @property
    def names(self) -> Mapping[str, str]:
        """By a label of a file, what it is called."""
        return self.classes if isinstance(self.classes, Mapping) else {name: name for name in self.classes}

    def load(self, data_dir: Path | None, _: Path | None = None) -> Examples:
        """Raises ValueError if files cannot be had, are other ones, or a row is not as it should be."""
        paths, source = self.get(data_dir)
        left_out = Counter[str]()
        splits = self.splits(paths, left_out)
        note = self.note + told(left_out)
        return examples_of(self.name, splits, source, note, tuple(self.names.values()), self.language)

    def splits(self, paths: Sequence[Path], left_out: Counter[str]) -> "list[pd.DataFrame]":
        """Tables for training, validation and testing; ``left_out`` counts what is in no text."""
        raise NotImplementedError


def cut(frame: "pd.DataFrame", by: Sequence[str], shares: Sequence[float]) -> "list[pd.DataFrame]":
    """``frame`` in parts of about these shares of it, so that no text of the columns ``by`` is in two of them.

    Rows that have such a text in common are a group, and so are those that have one in common with them. A group's
    part is told by the sha256 of its first text in the alphabet: the same content is cut the same way everywhere.
    Rows are in the order of ``mixed``.
    """
    import pandas as pd
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    codes, texts = pd.factorize(pd.concat([frame[column] for column in by]).to_numpy(), sort=True)
    codes = codes.reshape(len(by), len(frame))
    edges = np.tile(codes[0], len(by)), codes.ravel()
    linked = coo_array((np.ones(codes.size), edges), shape=(len(texts), len(texts)))
    _, groups = connected_components(linked, directed=False)
    # Texts are sorted, so the first of a group is its first in the alphabet.
    places = np.array([fraction(texts[first]) for first in np.unique(groups, return_index=True)[1]])
    parts = np.searchsorted(np.cumsum(shares)[:-1], places[groups[codes[0]]], side="right")
    return [mixed(frame[parts == part]) for part in range(len(shares))]


def mixed(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The rows in the order of their sha256: the first of them are a fair sample, however the file was sorted."""
    encode = msgspec.json.Encoder().encode
    keys = [hashlib.sha256(encode(row)).digest() for row in frame.itertuples(index=False, name=None)]
    return frame.iloc[sorted(range(len(keys)), key=keys.__getitem__)].reset_index(drop=True)


def fraction(text: str) -> float:
    """A number from 0 to 1 that depends on the text alone, and on all of it."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
