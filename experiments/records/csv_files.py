"""The CSV files of a comparison: how tables are written so that no spreadsheet runs them, and how they are read.

A spreadsheet takes a text that begins with ``= + - @``, a tab or a carriage return for a formula. Such a text gets an
apostrophe in front, which the reader here takes off again. Numbers stay as they are.
"""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.records.record import read_file
from experiments.records.strict_json import Source, visible

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_FIGURES = re.compile(r"[+-][\d.,%\[\] +-]*")
"""a signed number with its interval: nothing in it can be called"""


def to_csv(table: pd.DataFrame, float_format: str | None = None) -> str:
    """The table as the text of a CSV file, without its index, and with nothing that begins like a formula."""
    safe = table.copy()
    for name, kind in table.dtypes.items():
        if not pd.api.types.is_numeric_dtype(kind):
            safe[name] = table[name].map(_neutral)
    return safe.to_csv(index=False, float_format=float_format)


def _neutral(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if _FORMULA.match(value) and not _FIGURES.fullmatch(value):
        value = f"'{value}"
    # Pandas does not quote a carriage return, which would end the row.
    return value.replace("\r\n", "\n").replace("\r", "\n")


class Column(NamedTuple):
    """A column's type for ``read_csv``: how a cell is converted, with ValueError if it cannot be, and to what."""

    convert: Callable[[str], Any]
    expected: str


def _text(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


TEXT = Column(_text, "text")
"""text as it was before ``to_csv``"""


def whole(least: int, most: int) -> Column:
    """Whole numbers from ``least`` to ``most``."""
    return Column(lambda cell: _between(int(cell), least, most), f"a whole number from {least} to {most}")


def number(least: float = -1e100, most: float = 1e100) -> Column:
    """Finite numbers from ``least`` to ``most``."""
    return Column(lambda cell: _between(float(cell), least, most), f"a number from {least:g} to {most:g}")


def _between(value: float, least: float, most: float) -> float:
    if not least <= value <= most:
        raise ValueError
    return value


def read_csv(path: Path, columns: Mapping[str, Column], *, key: Sequence[str]) -> pd.DataFrame:
    """The named columns of a CSV file that has one row or more, no two of them alike in all columns of ``key``.

    Raises:
        ValueError: the file cannot be read, lacks a column, has no rows or two with the same key, or a cell is not of
            its column's type; the message names the file, and the line and the column.
    """
    source = _source(path)
    try:
        content = read_file(path, source).decode()
    except UnicodeDecodeError:
        raise source.error(" is not text in UTF-8") from None
    return _parsed(path, content, tuple(columns.items()), tuple(key)).copy()


def _source(path: Path) -> Source:
    return Source(str(path), "remove it, or run the comparison again to measure it anew")


@lru_cache(maxsize=4)  # of an experiment's claims most read the same table
def _parsed(path: Path, content: str, columns: tuple[tuple[str, Column], ...], key: tuple[str, ...]) -> pd.DataFrame:
    source = _source(path)
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    cells: dict[str, list[Any]] = {name: [] for name, _ in columns}
    try:
        header = next(reader, [])
        lacking = [name for name, _ in columns if header.count(name) != 1]
        if lacking:
            raise source.error(f" has no column {', '.join(lacking)}, or has it twice")
        places = [(name, header.index(name), convert, expected) for name, (convert, expected) in columns]
        for row in reader:
            if len(row) != len(header):
                raise source.error(f", line {reader.line_num} has {len(row)} cells, and {len(header)} columns")
            for name, place, convert, expected in places:
                try:
                    cells[name].append(convert(row[place]))
                except ValueError:
                    shown = f"{visible(row[place])[:60]!r}, expected {expected}"
                    raise source.error(f", line {reader.line_num}, column {name} is {shown}") from None
    except csv.Error as error:
        raise source.error(f", line {reader.line_num} is no CSV ({error})") from None
    if not next(iter(cells.values())):
        raise source.error(" has no rows")
    table = pd.DataFrame(cells)
    if table.duplicated(list(key)).any():
        raise source.error(f" has two rows of the same {', '.join(key)}")
    return table
