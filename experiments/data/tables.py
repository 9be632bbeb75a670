"""Reading lines, tables and parallel texts. What is wrong in one is told with its file and row.

Rows are numbered as an editor does: from 1, a header included.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.data.files import read_content

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table:
    """A file of lines in UTF-8, packed with gzip or as a ``member`` of a zip, or not packed."""

    path: Path
    origin: str
    """what messages begin with, as ``--data sst-2``"""
    member: str | None = None

    def wrong(self, what: str, row: int | None = None) -> ValueError:
        """An error that names the file, the row and what would do."""
        file = f"{self.path}, {self.member}" if self.member else str(self.path)
        where = file if row is None else f"{file}, row {row}"
        return ValueError(f"{self.origin}: {where}: {what}; replace or remove it")

    def check(self, sha256: str | None) -> None:
        """Raises ValueError if the content, unpacked, has another sha256; None: it is not known."""
        content = read_content(self.path, origin=self.origin, member=self.member)
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise self.wrong(f"it is damaged or another file (the sha256 of its content is not {sha256})")

    def lines(self) -> list[str]:
        """Its lines, ended by a line feed alone: texts hold other characters that Python takes for ends of lines.

        A byte order mark and carriage returns at the ends are left out. Raises ValueError if the file cannot be read
        (see ``read_content``), is empty or not in UTF-8.
        """
        content = read_content(self.path, origin=self.origin, member=self.member)
        try:
            lines = content.decode("utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            row = error.object.count(b"\n", 0, error.start) + 1
            raise self.wrong(f"it is not UTF-8 ({error.reason})", row) from None
        if not lines[-1]:
            lines.pop()
        if not lines:
            raise self.wrong("it is empty")
        return [line.removesuffix("\r") for line in lines]

    def read(
        self,
        columns: Mapping[str, str],
        *,
        header: Sequence[str] | None = None,
        rows: int | None = None,
        may_pass_over: int = 0,
    ) -> "pd.DataFrame":
        """Some columns of a table whose fields are separated by tabs; a quotation mark is a character like others.

        ``columns`` says what they are called there and what they are to be called. The first row is the header, unless
        ``header`` says what it would have been. White space around a field is left out. ``rows`` is the number of rows
        that have to be there, and ``may_pass_over`` how many with another number of columns may be passed over. The
        index is the number of the row.

        Raises ValueError if a column is not there, a row has more or fewer than the header, or rows are missing.
        """
        import pandas as pd

        lines, first = self.lines(), 1
        if header is None:
            header, lines, first = lines[0].split("\t"), lines[1:], 2
            if missing := [name for name in columns if name not in header]:
                raise self.wrong(f"there is no column {missing[0]!r}, expected {', '.join(columns)}", 1)
        fields = [line.split("\t") for line in lines]
        broken = [number for number, row in enumerate(fields) if len(row) != len(header)]
        if len(broken) > may_pass_over:
            count = len(fields[broken[0]])
            found = "1 column" if count == 1 else f"{count} columns"
            raise self.wrong(f"{found}, expected {len(header)} ({', '.join(header)})", broken[0] + first)
        kept = [(first + number, row) for number, row in enumerate(fields) if len(row) == len(header)]
        if rows not in (None, len(kept)):
            raise self.wrong(f"it has {len(kept):,} rows, expected {rows:,}")
        places = {called: list(header).index(name) for name, called in columns.items()}
        index = pd.Index([number for number, _ in kept])
        return pd.DataFrame(
            {called: pd.Series([row[place].strip() for _, row in kept], index, str) for called, place in places.items()}
        )

    def classes(self, labels: "pd.Series[str]", names: Mapping[str, str]) -> "pd.Series[str]":
        """Labels of this table under the names of their classes. Raises ValueError if one is no key of ``names``."""
        unknown = labels[~labels.isin(list(names))]
        if len(unknown):
            raise self.wrong(f"the label is {unknown.iloc[0][:60]!r}, expected {' or '.join(names)}", unknown.index[0])
        return labels.map(names)

    def scores(self, labels: "pd.Series[str]", largest: float) -> "pd.Series[float]":
        """Labels of this table as numbers from 0 to ``largest``. Raises ValueError if one is not."""
        import pandas as pd

        numbers = pd.to_numeric(labels, errors="coerce").astype(float)
        unknown = labels[~numbers.between(0, largest)]
        if len(unknown):
            what = f"the score is {unknown.iloc[0][:60]!r}, expected a number from 0 to {largest:g}"
            raise self.wrong(what, unknown.index[0])
        return numbers


def read_parallel(source: Table, target: Table, *, rows: int | None = None) -> "pd.DataFrame":
    """``source`` and ``target`` of two files, a sentence a line; pairs with an empty side are left out.

    Raises ValueError if one has more lines than the other, or not ``rows``.
    """
    import pandas as pd

    sources, targets = source.lines(), target.lines()
    for table, lines in ((source, sources), (target, targets)):
        if rows not in (None, len(lines)):
            raise table.wrong(f"it has {len(lines):,} lines, expected {rows:,}")
    if len(sources) != len(targets):
        raise target.wrong(f"it has {len(targets):,} lines, and {source.path} {len(sources):,}; they must be equal")
    frame = pd.DataFrame({"source": pd.Series(sources, dtype=str), "target": pd.Series(targets, dtype=str)})
    frame = frame.apply(lambda column: column.str.strip())
    return frame[(frame["source"] != "") & (frame["target"] != "")]
