"""Labelled examples of tables whose fields are separated by tabs, and triplets of lines of JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from experiments.data.examples import NEARER, Examples, cut, examples_of, fraction, mixed, names_of
from experiments.data.files import Files
from experiments.data.tables import Table, told
from experiments.errors import why

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Tables(Files):
    """A table for training, of which validation is cut, one for testing, and perhaps more for training.

    Of a zip archive those are read that stand in the form before it.
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
        tables = [Table(path, self.origin) for path in paths]
        if paths[0].suffix == ".zip":
            self.check(paths[0])
            tables = [Table(paths[0], self.origin, member) for member in self.forms[-2]]
        tests = tables[:0] if len(self.parts) == 3 else tables[1:2]
        texts = [column for column in self.columns.values() if column != "label"]
        splits = cut(self._read([table for table in tables if table not in tests], self.rows[0]), texts, self.parts)
        splits += [mixed(self._read([table], self.rows[1])) for table in tests]
        note = self.note + told(table.left_out for table in tables)
        return examples_of(self.name, splits, source, note, tuple(names_of(self.classes).values()))

    def _read(self, tables: Sequence[Table], rows: int | None) -> "pd.DataFrame":
        """The rows of all these tables; ``rows`` is how many there have to be."""
        import pandas as pd

        frames = []
        for table in tables:
            frame = table.read(self.columns, header=self.header, may_pass_over=self.may_pass_over)
            classes, labels = names_of(self.classes), frame["label"]
            frame["label"] = table.classes(labels, classes) if classes else table.scores(labels, self.largest_score)
            frames.append(frame)
        together = pd.concat(frames)
        if rows not in (None, len(together)):
            others = " and ".join(table.path.name for table in tables[1:])
            which = f"with {others} it" if others else "it"
            raise tables[0].wrong(f"{which} has {len(together):,} rows, expected {rows:,}")
        return together


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
    content: Mapping[str, str] = field(default_factory=dict)
    """by names: sha256 of what is in files"""

    def load(self, data_dir: Path | None, _: Path | None = None) -> Examples:
        """Raises ValueError if a file cannot be had, or is not as it should be."""
        paths, source = self.get(data_dir)
        tables = [Table(path, self.origin) for path in paths]
        frames = [_triplets(table, rows, len(tables) > 1) for table, rows in zip(tables, self.rows, strict=True)]
        for table, name in zip(tables, self.forms[-1], strict=True):
            table.check(self.content.get(name))
        splits = list(map(mixed, frames)) if len(frames) > 1 else cut(_swapped(frames[0]), ["text"], (0.8, 0.1, 0.1))
        return examples_of(self.name, splits, source, self.note + told(table.left_out for table in tables), NEARER)


def _triplets(table: Table, rows: int, labelled: bool) -> "pd.DataFrame":
    import pandas as pd

    kind = Labelled if labelled else Triplet
    triplets = []
    for row, line in enumerate(table.lines(), start=1):
        try:
            found = msgspec.json.decode(line, type=kind)
        except msgspec.DecodeError as error:
            expected = f"expected {', '.join(kind.__struct_fields__)} in a JSON object"
            raise table.wrong(f"{why(error)}; {expected}", row) from None
        nearer = NEARER[isinstance(found, Labelled) and found.label == "C"]
        triplets.append((found.A, found.B, found.C, nearer))
    if len(triplets) != rows:
        raise table.wrong(f"it has {len(triplets):,} rows, expected {rows:,}")
    return pd.DataFrame(triplets, columns=["text", *NEARER, "label"], dtype=str)


def _swapped(frame: "pd.DataFrame") -> "pd.DataFrame":
    """``one`` and ``other`` exchanged in about half of the rows, told by the sha256 of the texts.

    Where the nearer text is always the first, a model would have nothing to learn.
    """
    chosen = [fraction("\n".join(row)) < 0.5 for row in frame[["text", *NEARER]].itertuples(index=False)]
    frame.loc[chosen, ["one", "other"]] = frame.loc[chosen, ["other", "one"]].to_numpy()
    frame.loc[chosen, "label"] = "other"
    return frame
