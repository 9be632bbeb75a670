"""Reading lines, tables and parallel texts. What is wrong in one is told with its file and row.

Rows are numbered as an editor does: from 1, a header included.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.data.files import read_content

if TYPE_CHECKING:
    import pandas as pd

MARK = "\ufeff"
"""the byte order mark"""


@dataclass(frozen=True)
class Table:
    """A file of lines in UTF-8, packed with gzip or as a ``member`` of a zip, or not packed."""

    path: Path
    origin: str
    """what messages begin with, as ``--data sst-2``"""
    member: str | None = None
    left_out: Counter[str] = field(default_factory=Counter, compare=False)
    """what of the file is in no text, in words, and how often; filled by reading"""

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

        A byte order mark and carriage returns at the ends are left out, and counted. Raises ValueError if the file
        cannot be read (see ``read_content``), is empty or not in UTF-8.
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
        self.left_out["byte order marks"] = int(text.startswith(MARK))
        self.left_out["carriage returns at ends of lines"] = sum(line.endswith("\r") for line in lines)
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
        ``header`` says what it would have been. Spaces around a field are left out, and counted; all other characters
        are kept. ``rows`` is the number of rows that have to be there, and ``may_pass_over`` how many with another
        number of columns may be passed over, and counted. The index is the number of the row.

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
        self.left_out["rows with another number of columns"] = len(broken)
        places = {called: list(header).index(name) for name, called in columns.items()}
        index = pd.Index([number for number, _ in kept])
        return pd.DataFrame(
            {
                called: pd.Series(without_spaces([row[place] for _, row in kept], self.left_out), index, str)
                for called, place in places.items()
            }
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


def without_spaces(texts: Iterable[str], left_out: Counter[str], spaces: str = " ") -> list[str]:
    """The texts without ``spaces`` around them, which ``left_out`` counts. Other characters are kept: ``str.strip``
    would take control characters, line separators and ideographic spaces too.
    """
    pairs = [(text, text.strip(spaces)) for text in texts]
    left_out["spaces around a text"] += sum(text != kept for text, kept in pairs)
    return [kept for _, kept in pairs]


def told(left_out: Iterable[Counter[str]]) -> str:
    """A sentence, to stand at the end of a note, that says what reading left out; empty if that is nothing."""
    counts = sum(left_out, Counter[str]())
    listed = ", ".join(f"{what} ({count:,})" for what, count in sorted(counts.items()) if count)
    return f" Left out of the files: {listed}." if listed else ""


def read_parallel(source: Table, target: Table, *, rows: int | None = None) -> "pd.DataFrame":
    """``source`` and ``target`` of two files, a sentence a line without the spaces around it.

    Pairs with an empty side are left out, and counted. Raises ValueError if one has more lines than the other, or not
    ``rows``.
    """
    import pandas as pd

    sources, targets = source.lines(), target.lines()
    for table, lines in ((source, sources), (target, targets)):
        if rows not in (None, len(lines)):
            raise table.wrong(f"it has {len(lines):,} lines, expected {rows:,}")
    if len(sources) != len(targets):
        raise target.wrong(f"it has {len(targets):,} lines, and {source.path} {len(sources):,}; they must be equal")
    texts = {"source": without_spaces(sources, source.left_out), "target": without_spaces(targets, target.left_out)}
    frame = pd.DataFrame({name: pd.Series(column, dtype=str) for name, column in texts.items()})
    whole = frame[(frame["source"] != "") & (frame["target"] != "")]
    source.left_out["pairs with an empty side"] = len(frame) - len(whole)
    return whole
