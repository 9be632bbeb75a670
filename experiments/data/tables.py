"""Examples from files of lines: tables whose fields are separated by tabs, lines of JSON, and pairs of translations.

What is wrong is told with its file and row. Rows are numbered as an editor does: from 1, a header included.
"""

import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from experiments.data.examples import NEARER, Examples, cut, examples_of, fraction, mixed, names_of
from experiments.data.files import Files, read_content, told
from experiments.errors import why

if TYPE_CHECKING:
    import pandas as pd

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
class Tables(Files):
    """A table for training, of which validation is cut, one for testing, and perhaps more for training.

    A quotation mark is a character like others. Of a zip archive those are read that stand in the form before it.
    """

    columns: Mapping[str, str]
    """what they are called in the file, and what they are to be called"""
    classes: Mapping[str, str] | Sequence[str] = ()
    """the same of labels; none where they are scores"""
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

    def load(self, data_dir: Path | None, _: Path | None = None) -> Examples:
        """Raises ValueError if files cannot be had, are other ones, or a row is not as it should be."""
        paths, source = self.get(data_dir)
        left_out = Counter[str]()
        files = [Lines(path, self.origin, left_out) for path in paths]
        if paths[0].suffix == ".zip":
            self.check(paths)
            files = [Lines(paths[0], self.origin, left_out, member) for member in self.forms[-2]]
        tests = [] if len(self.parts) == 3 else files[1:2]
        texts = [column for column in self.columns.values() if column != "label"]
        splits = cut(self._joined([file for file in files if file not in tests], self.rows[0]), texts, self.parts)
        splits += [mixed(self._joined([file], self.rows[1])) for file in tests]
        names = tuple(names_of(self.classes).values())
        return examples_of(self.name, splits, source, self.note + told(left_out), names)

    def _joined(self, files: Sequence[Lines], rows: int | None) -> "pd.DataFrame":
        """All of these files; ``rows`` is how many there have to be."""
        import pandas as pd

        together = pd.concat([self._read(file) for file in files])
        if rows not in (None, len(together)):
            others = " and ".join(file.path.name for file in files[1:])
            which = f"with {others} it" if others else "it"
            raise files[0].wrong(f"{which} has {len(together):,} rows, expected {rows:,}")
        return together

    def _read(self, file: Lines) -> "pd.DataFrame":
        """The index is the number of the row."""
        import pandas as pd

        fields = dict(enumerate((line.split("\t") for line in file.read()), start=1))
        header = list(self.header or fields.pop(1))
        if missing := [name for name in self.columns if name not in header]:
            raise file.wrong(f"there is no column {missing[0]!r}, expected {', '.join(self.columns)}", 1)
        broken = [number for number, row in fields.items() if len(row) != len(header)]
        if len(broken) > self.may_pass_over:
            count = len(fields[broken[0]])
            what = f"{count} column{'s' * (count != 1)}, expected {len(header)} ({', '.join(header)})"
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

    def _labels(self, file: Lines, labels: "pd.Series[str]") -> "pd.Series[str] | pd.Series[float]":
        """Names of classes, or scores."""
        import pandas as pd

        names = names_of(self.classes)
        scores = pd.to_numeric(labels, errors="coerce").astype(float)
        unknown = labels[~(labels.isin(list(names)) if names else scores.between(0, self.largest_score))]
        if len(unknown):
            what, wanted = (
                ("label", " or ".join(names)) if names else ("score", f"a number from 0 to {self.largest_score:g}")
            )
            raise file.wrong(f"the {what} is {unknown.iloc[0][:60]!r}, expected {wanted}", unknown.index[0])
        return labels.map(names) if names else scores


class Triplet(msgspec.Struct):
    """A line of a file."""

    A: str
    B: str
    C: str


class Labelled(Triplet):
    label: Literal["B", "C"]


@dataclass(frozen=True, kw_only=True)
class Triplets(Files):
    """A JSON object a line with texts A, B and C and which is nearer to A as ``label``, in a file for each split.

    A single file has no labels: B is the nearer one, exchanged with C in about half of the rows, and it is cut 80/10/10
    by A.
    """

    rows: Sequence[int]
    """of each file"""

    def load(self, data_dir: Path | None, _: Path | None = None) -> Examples:
        """Raises ValueError if a file cannot be had, or is not as it should be."""
        paths, source = self.get(data_dir)
        left_out = Counter[str]()
        self.check(paths)
        files = [Lines(path, self.origin, left_out) for path in paths]
        kind = Labelled if len(files) > 1 else Triplet
        frames = [_triplets(file, rows, kind) for file, rows in zip(files, self.rows, strict=True)]
        splits = list(map(mixed, frames)) if len(frames) > 1 else cut(_swapped(frames[0]), ["text"], (0.8, 0.1, 0.1))
        return examples_of(self.name, splits, source, self.note + told(left_out), NEARER)


def _triplets(file: Lines, rows: int, kind: type[Triplet]) -> "pd.DataFrame":
    import pandas as pd

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


def _swapped(frame: "pd.DataFrame") -> "pd.DataFrame":
    """``one`` and ``other`` exchanged in about half of the rows, told by the sha256 of the texts.

    Where the nearer text is always the first, a model would have nothing to learn.
    """
    chosen = [fraction("\n".join(row)) < 0.5 for row in frame[["text", *NEARER]].itertuples(index=False)]
    frame.loc[chosen, ["one", "other"]] = frame.loc[chosen, ["other", "one"]].to_numpy()
    frame.loc[chosen, "label"] = "other"
    return frame


@dataclass(frozen=True, kw_only=True)
class Translations(Files):
    """Pairs of files, source and target, a sentence a line: the last pair for testing, the one before for validation.

    Pairs with an empty side are left out.
    """

    rows: Sequence[int]
    """of each pair of files"""
    language: str = ""
    """of the targets, as in ISO 639-1; BLEU of some needs another tokenizer"""
    escaped: bool = False
    """whether escapes of a tokenizer are undone (``&apos;`` is '), which are no part of the text"""

    def load(self, data_dir: Path | None, _: Path | None = None) -> Examples:
        """Raises ValueError if a file cannot be had, or is not as it should be."""
        import pandas as pd

        paths, source = self.get(data_dir)
        left_out = Counter[str]()
        self.check(paths)
        files = [Lines(path, self.origin, left_out) for path in paths]
        pairs = [self._pairs(*pair) for pair in zip(files[::2], files[1::2], self.rows, strict=True)]
        splits = [pd.concat(pairs[:-2]), *pairs[-2:]]
        return examples_of(self.name, splits, source, self.note + told(left_out), language=self.language)

    def _pairs(self, source: Lines, target: Lines, rows: int) -> "pd.DataFrame":
        import pandas as pd

        texts: dict[str, pd.Series[str]] = {}
        for side, file in {"source": source, "target": target}.items():
            lines = file.read()
            if len(lines) != rows:
                raise file.wrong(f"it has {len(lines):,} lines, expected {rows:,}")
            texts[side] = pd.Series(file.stripped(lines), dtype=str)
        frame = pd.DataFrame(texts)
        whole = frame[(frame["source"] != "") & (frame["target"] != "")]
        source.left_out["pairs with an empty side"] += len(frame) - len(whole)
        return whole.map(html.unescape) if self.escaped else whole
