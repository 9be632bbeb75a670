"""Examples from files of lines: tables whose fields are separated by tabs, lines of JSON, and pairs of translations.

What is wrong is told with its file and row. Rows are numbered as an editor does: from 1, a header included.
"""

import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import pandas as pd

from experiments.console import many
from experiments.data.examples import NEARER, ExampleFiles, cut, fraction, mixed
from experiments.data.files import read_content
from experiments.errors import why

MARK = "\ufeff"
"""the byte order mark"""


@dataclass(frozen=True)
class Lines:
    """A file of lines in UTF-8, packed with gzip or as a ``member`` of a zip, or not packed."""

    path: Path
    origin: str
    """what messages begin with, as ``--data sst-2``"""
    left_out: Counter[str]
    """counts what of files is in no text, in words"""
    member: str | None = None

    def wrong(self, what: str, row: int | None = None) -> ValueError:
        """An error that names the file, the row and what would do."""
        file = f"{self.path}, {self.member}" if self.member else str(self.path)
        where = file if row is None else f"{file}, row {row}"
        return ValueError(f"{self.origin}: {where}: {what}; replace or remove it")

    def read(self) -> list[str]:
        """The lines, ended by a line feed alone: texts hold other characters that Python takes for ends of lines.

        A byte order mark and carriage returns at the ends are left out. Raises ValueError if the file cannot be read
        (see ``read_content``), is empty or not in UTF-8.
        """
        content = read_content(self.path, origin=self.origin, member=self.member)
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            row = error.object.count(b"\n", 0, error.start) + 1
            raise self.wrong(f"it is not UTF-8 ({error.reason})", row) from None
        lines = text.removeprefix(MARK).split("\n")
        if not lines[-1]:
            lines.pop()
        if not lines:
            raise self.wrong("it is empty")
        self.left_out["byte order marks"] += text.startswith(MARK)
        self.left_out["carriage returns at ends of lines"] += sum(line.endswith("\r") for line in lines)
        return [line.removesuffix("\r") for line in lines]

    def stripped(self, texts: Iterable[str]) -> list[str]:
        """The texts without the spaces around them. Other characters are kept: ``str.strip`` would take control
        characters, line separators and ideographic spaces too.
        """
        pairs = [(text, text.strip(" ")) for text in texts]
        self.left_out["spaces around a text"] += sum(text != kept for text, kept in pairs)
        return [kept for _, kept in pairs]


@dataclass(frozen=True, kw_only=True)
class Tables(ExampleFiles):
    """A table for training, of which validation is cut, one for testing, and perhaps more for training.

    A quotation mark is a character like others. Of a zip archive those are read that stand in the form before it.
    """

    columns: Mapping[str, str]
    """what they are called in the file, and what they are to be called"""
    largest_score: float = 0.0
    """the smallest is 0"""
    header: Sequence[str] | None = None
    """of files that have none"""
    rows: Sequence[int | None] = (None, None)
    """for training and testing; None: not known for certain"""
    may_pass_over: int = 0
    """rows of a file that have another number of columns"""
    parts: Sequence[float] = (0.9, 0.1)
    """training and validation; with the test split where no file is for that"""

    def splits(self, paths: Sequence[Path], left_out: Counter[str]) -> list[pd.DataFrame]:
        files = [Lines(path, self.origin, left_out) for path in paths]
        if paths[0].suffix == ".zip":
            self.check(paths)
            files = [Lines(paths[0], self.origin, left_out, member) for member in self.forms[-2]]
        tests = [] if len(self.parts) == 3 else files[1:2]
        texts = [column for column in self.columns.values() if column != "label"]
        splits = cut(self._joined([file for file in files if file not in tests], self.rows[0]), texts, self.parts)
        return splits + [mixed(self._joined([file], self.rows[1])) for file in tests]

    def _joined(self, files: Sequence[Lines], rows: int | None) -> pd.DataFrame:
        """All of these files; ``rows`` is how many there have to be."""
        together = pd.concat([self._read(file) for file in files])
        if rows not in (None, len(together)):
            others = " and ".join(file.path.name for file in files[1:])
            which = f"with {others} it" if others else "it"
            raise files[0].wrong(f"{which} has {len(together):,} rows, expected {rows:,}")
        return together

    def _read(self, file: Lines) -> pd.DataFrame:
        """The index is the number of the row."""
        fields = dict(enumerate((line.split("\t") for line in file.read()), start=1))
        header = list(self.header or fields.pop(1))
        if missing := [name for name in self.columns if name not in header]:
            raise file.wrong(f"there is no column {missing[0]!r}, expected {', '.join(self.columns)}", 1)
        broken = [number for number, row in fields.items() if len(row) != len(header)]
        if len(broken) > self.may_pass_over:
            count = len(fields[broken[0]])
            what = f"{many(count, 'column')}, expected {len(header)} ({', '.join(header)})"
            raise file.wrong(what, broken[0])
        file.left_out["rows with another number of columns"] += len(broken)
        for number in broken:
            del fields[number]
        texts = {
            called: file.stripped(row[header.index(name)] for row in fields.values())
            for name, called in self.columns.items()
        }
        frame = pd.DataFrame(texts, list(fields), dtype=str)
        frame["label"] = self._labels(file, frame["label"])
        return frame

    def _labels(self, file: Lines, labels: pd.Series) -> pd.Series:
        """Names of classes, or scores."""
        scores = pd.to_numeric(labels, errors="coerce").astype(float)
        is_known = labels.isin([*self.names]) if self.names else scores.between(0, self.largest_score)
        wanted = " or ".join(self.names) or f"a number from 0 to {self.largest_score:g}"
        if len(unknown := labels[~is_known]):
            what = "label" if self.names else "score"
            raise file.wrong(f"the {what} is {unknown.iloc[0][:60]!r}, expected {wanted}", unknown.index[0])
        return labels.map(self.names) if self.names else scores


class Triplet(msgspec.Struct):
    """A line of a file."""

    A: str
    B: str
    C: str


class Labelled(Triplet):
    label: Literal["B", "C"]


@dataclass(frozen=True, kw_only=True)
class Triplets(ExampleFiles):
    """A JSON object a line with texts A, B and C and which is nearer to A as ``label``, in a file for each split.

    A single file has no labels: B is the nearer one, exchanged with C in about half of the rows, and it is cut 80/10/10
    by A.
    """

    rows: Sequence[int]
    """of each file"""

    classes: Sequence[str] = NEARER

    def splits(self, paths: Sequence[Path], left_out: Counter[str]) -> list[pd.DataFrame]:
        self.check(paths)
        kind = Labelled if len(paths) > 1 else Triplet
        frames = [
            _triplets(Lines(path, self.origin, left_out), rows, kind)
            for path, rows in zip(paths, self.rows, strict=True)
        ]
        return list(map(mixed, frames)) if len(frames) > 1 else cut(_swapped(frames[0]), ["text"], (0.8, 0.1, 0.1))


def _triplets(file: Lines, rows: int, kind: type[Triplet]) -> pd.DataFrame:
    triplets = []
    for row, line in enumerate(file.read(), start=1):
        try:
            found = msgspec.json.decode(line, type=kind)
        except msgspec.DecodeError as error:
            expected = f"expected {', '.join(kind.__struct_fields__)} in a JSON object"
            raise file.wrong(f"{why(error)}; {expected}", row) from None
        triplets.append((found.A, found.B, found.C, NEARER[getattr(found, "label", "B") == "C"]))
    if len(triplets) != rows:
        raise file.wrong(f"it has {len(triplets):,} rows, expected {rows:,}")
    return pd.DataFrame(triplets, columns=["text", *NEARER, "label"], dtype=str)


def _swapped(frame: pd.DataFrame) -> pd.DataFrame:
    """``one`` and ``other`` exchanged in about half of the rows, told by the sha256 of the texts.

    Where the nearer text is always the first, a model would have nothing to learn.
    """
    chosen = [fraction("\n".join(row)) < 0.5 for row in frame[["text", *NEARER]].itertuples(index=False)]
    frame.loc[chosen, ["one", "other"]] = frame.loc[chosen, ["other", "one"]].to_numpy()
    frame.loc[chosen, "label"] = "other"
    return frame


@dataclass(frozen=True, kw_only=True)
class Translations(ExampleFiles):
    """Pairs of files, source and target, a sentence a line: the last pair for testing, the one before for validation.

    Pairs with an empty side are left out.
    """

    rows: Sequence[int]
    """of each pair of files"""
    escaped: bool = False
    """whether escapes of a tokenizer are undone (``&apos;`` is '), which are no part of the text"""

    def splits(self, paths: Sequence[Path], left_out: Counter[str]) -> list[pd.DataFrame]:
        self.check(paths)
        files = [Lines(path, self.origin, left_out) for path in paths]
        pairs = [self._pairs(*pair) for pair in zip(files[::2], files[1::2], self.rows, strict=True)]
        return [pd.concat(pairs[:-2]), *pairs[-2:]]

    def _pairs(self, source: Lines, target: Lines, rows: int) -> pd.DataFrame:
        texts = dict[str, pd.Series]()
        for side, file in {"source": source, "target": target}.items():
            lines = file.read()
            if len(lines) != rows:
                raise file.wrong(f"it has {len(lines):,} lines, expected {rows:,}")
            texts[side] = pd.Series(file.stripped(lines), dtype=str)
        frame = pd.DataFrame(texts)
        whole = frame[(frame["source"] != "") & (frame["target"] != "")]
        source.left_out["pairs with an empty side"] += len(frame) - len(whole)
        return whole.map(html.unescape) if self.escaped else whole
