"""The tables of a comparison: read from CSV files, or as they are packed."""

import io
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.records.files import read_file, wrong_file
from experiments.records.parquet import pyarrow, read_texts

REMEDY = "remove it, or run the comparison again to measure it anew"


class NotMeasured(LookupError):
    """A comparison has no such table."""


def find_table(path: Path) -> Path | None:
    """The CSV file, or the Parquet file in its place where results are packed; None if there is neither."""
    packed = path.with_suffix(".parquet")
    return path if path.exists() else packed if packed.exists() else None


def read_table(path: Path) -> pd.DataFrame:
    """A CSV or Parquet file as texts. Raises ValueError that names it."""
    return _read(path, (), ())


def read_csv(path: Path, columns: Mapping[str, type], *, key: Sequence[str]) -> pd.DataFrame:
    """The named columns of a table that has one row or more, no two of them alike in all columns of ``key``.

    ``path`` is its CSV file, and may be packed.

    Raises NotMeasured if there is none, and ValueError that names the file if it is not so, or has a value not of its
    column's type or a number that is not finite.
    """
    there = find_table(path)
    if there is None:
        raise NotMeasured(path.name)
    return _read(there, tuple(columns.items()), tuple(key)).copy()


def _read(path: Path, columns: tuple[tuple[str, type], ...], key: tuple[str, ...]) -> pd.DataFrame:
    content, is_packed = read_file(path, REMEDY), path.suffix == ".parquet"
    if is_packed:
        pyarrow()  # where it is not installed, the file is not to blame
    try:
        return _parsed(content, is_packed, columns, key)
    except (ValueError, OverflowError) as error:
        raise wrong_file(str(path), str(error), REMEDY) from None


@lru_cache(maxsize=4)  # of a study's claims most read the same table
def _parsed(
    content: bytes, is_packed: bool, columns: tuple[tuple[str, type], ...], key: tuple[str, ...]
) -> pd.DataFrame:
    table = read_texts(content) if is_packed else _texts(content)
    if not columns:
        return table
    names = [name for name, _ in columns]
    lacking = [name for name in names if name not in table.columns]
    if lacking:
        raise ValueError(f"has no column {', '.join(lacking)}")
    if table.empty:
        raise ValueError("has no rows")
    table = table[names].astype(dict(columns))
    for name, values in table.select_dtypes("number").items():
        if not np.isfinite(values).all():
            raise ValueError(f"has a number that is not finite in the column {name}")
    if table.duplicated(list(key)).any():
        raise ValueError(f"has two rows of the same {', '.join(key)}")
    return table


def _texts(content: bytes) -> pd.DataFrame:
    try:
        with warnings.catch_warnings(action="error"):  # pandas only warns of a row that is too long
            return pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False, index_col=False)
    except (ValueError, Warning) as error:  # pandas' own errors are ValueErrors
        raise ValueError(f"is no CSV ({error})") from None
