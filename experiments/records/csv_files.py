"""The CSV files of a comparison: how tables are written so that no spreadsheet runs them, and how they are read.

A spreadsheet takes a text that begins with ``= + - @``, a tab or a carriage return for a formula. Such a text gets an
apostrophe in front, which the reader here takes off again. Numbers stay as they are.
"""

import io
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from experiments.records.files import read_file, wrong_file

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


def read_csv(path: Path, columns: Mapping[str, Column], *, key: Sequence[str]) -> pd.DataFrame:
    """The named columns of a CSV file that has one row or more, no two of them alike in all columns of ``key``.

    Raises ValueError that names the file, and the column, if it is not so, or a value not of its type and range.
    """
    content = read_file(path, REMEDY)
    try:
        return _parsed(content, tuple(columns.items()), tuple(key)).copy()
    except ValueError as error:
        raise wrong_file(str(path), str(error), REMEDY) from None


@lru_cache(maxsize=4)  # of a study's claims most read the same table
def _parsed(content: bytes, columns: tuple[tuple[str, Column], ...], key: tuple[str, ...]) -> pd.DataFrame:
    try:
        with warnings.catch_warnings(action="error"):  # pandas only warns of a row that is too long
            table = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False, index_col=False)
    except (ValueError, Warning) as error:  # pandas' own errors are ValueErrors
        raise ValueError(f"is no CSV ({error})") from None
    names = [name for name, _ in columns]
    lacking = [name for name in names if name not in table.columns]
    if lacking:
        raise ValueError(f"has no column {', '.join(lacking)}")
    if table.empty:
        raise ValueError("has no rows")
    table = table[names].copy()
    for name, (kind, least, most) in columns:
        if kind is str:
            table[name] = table[name].str.replace(rf"^'(?={_FORMULA})", "", regex=True)
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
