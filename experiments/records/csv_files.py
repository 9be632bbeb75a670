"""The tables of a comparison: written as CSV so that no spreadsheet runs them; read from that, or as they are packed.

A spreadsheet takes a text that begins with ``= + - @``, a tab or a carriage return for a formula. Such a text gets an
apostrophe in front, which the reader here takes off again. Numbers stay as they are.
"""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from experiments.records.files import is_there, read_file, wrong_file
from experiments.records.parquet import pyarrow, read_texts

_FORMULA = r"'*[=+\-@\t\r]"
_FIGURES = r"[+-][\d.,%\[\] +-]*"
"""a signed number with its interval: nothing in it can be called"""
REMEDY = "remove it, or run the comparison again to measure it anew"


def to_csv(table: pd.DataFrame, float_format: str | None = None) -> str:
    """The table as the text of a CSV file, without its index, and with nothing that begins like a formula."""
    safe = table.copy()
    for name, kind in table.dtypes.items():
        if not pd.api.types.is_numeric_dtype(kind):
            text = table[name].astype("string")
            risky = text.str.match(_FORMULA).fillna(False) & ~text.str.fullmatch(_FIGURES).fillna(False)
            # Pandas does not quote a carriage return, which would end the row.
            safe[name] = text.where(~risky, "'" + text).str.replace(r"\r\n?", "\n", regex=True)
    return safe.to_csv(index=False, float_format=float_format)


class Column(NamedTuple):
    """The type of a column's values, and the range of its numbers."""

    kind: type
    least: float = -1e100
    most: float = 1e100


TEXT = Column(str)
"""text as it was before ``to_csv``"""
whole = partial(Column, int)
"""(least, most) -> a column of whole numbers in this range"""
number = partial(Column, float)
"""the same of finite numbers"""


def find_table(path: Path) -> Path | None:
    """The CSV file, or the Parquet file in its place where results are packed; None if there is neither."""
    packed = path.with_suffix(".parquet")
    return path if is_there(path) else packed if packed.exists() else None


def read_table(path: Path) -> pd.DataFrame:
    """A CSV or Parquet file as texts, as they were before ``to_csv``. Raises ValueError that names it."""
    return _named(path, partial(_texts, read_file(path, REMEDY), path.suffix))


def read_csv(path: Path, columns: Mapping[str, Column], *, key: Sequence[str]) -> pd.DataFrame:
    """The named columns of a table that has one row or more, no two of them alike in all columns of ``key``.

    ``path`` is its CSV file, and may be packed.

    Raises ValueError that names the file, and the column, if it is not so, or a value not of its type and range.
    """
    path = find_table(path) or path
    content = read_file(path, REMEDY)
    return _named(path, partial(_parsed, content, path.suffix, tuple(columns.items()), tuple(key))).copy()


def _named(path: Path, read: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    if path.suffix == ".parquet":
        pyarrow()  # where it is not installed, the file is not to blame
    try:
        return read()
    except ValueError as error:
        raise wrong_file(str(path), str(error), REMEDY) from None


def _texts(content: bytes, suffix: str) -> pd.DataFrame:
    if suffix == ".parquet":
        return read_texts(content)
    try:
        with warnings.catch_warnings(action="error"):  # pandas only warns of a row that is too long
            table = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False, index_col=False)
    except (ValueError, Warning) as error:  # pandas' own errors are ValueErrors
        raise ValueError(f"is no CSV ({error})") from None
    return table.replace(rf"^'(?={_FORMULA})", "", regex=True)


@lru_cache(maxsize=4)  # of a study's claims most read the same table
def _parsed(content: bytes, suffix: str, columns: tuple[tuple[str, Column], ...], key: tuple[str, ...]) -> pd.DataFrame:
    table = _texts(content, suffix)
    names = [name for name, _ in columns]
    lacking = [name for name in names if name not in table.columns]
    if lacking:
        raise ValueError(f"has no column {', '.join(lacking)}")
    if table.empty:
        raise ValueError("has no rows")
    table = table[names].copy()
    for name, (kind, least, most) in columns:
        if kind is str:
            continue
        numbers = table[name].map(_as_number)
        wrong = ~numbers.between(least, most) | ((numbers % 1 != 0) & (kind is int))
        if wrong.any():
            row = int(wrong.to_numpy().argmax())
            came = f"{table[name].iloc[row][:60]!r}, expected a number from {least:g} to {most:g}"
            raise ValueError(f"row {row + 1}, column {name} is {came}")
        table[name] = numbers.astype(kind)
    if table.duplicated(list(key)).any():
        raise ValueError(f"has two rows of the same {', '.join(key)}")
    return table


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
