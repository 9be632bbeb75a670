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
        may_pass_over: int = 0,
    ) -> "pd.DataFrame":
        """Some columns of a table whose fields are separated by tabs; a quotation mark is a character like others.

        ``columns`` says what they are called there and what they are to be called. The first row is the header, unless
        ``header`` says what it would have been. Spaces around a field are left out, and counted; all other characters
        are kept. ``may_pass_over`` is how many rows with another number of columns may be passed over, and counted. The
        index is the number of the row.

        Raises ValueError if a column is not there, or a row has more or fewer than the header.
        """
        import pandas as pd

        fields = dict(enumerate((line.split("\t") for line in self.lines()), start=1))
        header = list(header or fields.pop(1))
        if missing := [name for name in columns if name not in header]:
            raise self.wrong(f"there is no column {missing[0]!r}, expected {', '.join(columns)}", 1)
        broken = [number for number, row in fields.items() if len(row) != len(header)]
        if len(broken) > may_pass_over:
            count = len(fields[broken[0]])
            found = "1 column" if count == 1 else f"{count} columns"
            raise self.wrong(f"{found}, expected {len(header)} ({', '.join(header)})", broken[0])
        self.left_out["rows with another number of columns"] = len(broken)
        for number in broken:
            del fields[number]
        texts = {
            called: without_spaces((row[header.index(name)] for row in fields.values()), self.left_out)
            for name, called in columns.items()
        }
        return pd.DataFrame(texts, list(fields), dtype=str)

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
