"""Parquet files of packed results: the rows of runs, and tables. pyarrow, which reads and writes them, is an extra."""

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from experiments.console import install_command
from experiments.records.files import read_file, wrong_file
from experiments.records.schema import MetricsRow, Status

if TYPE_CHECKING:
    import pandas as pd

STATUSES = b"statuses"
"""the metadata of runs.parquet that hold the statuses of all runs as JSON"""
COLUMNS = {"variant": "string", "seed": "int64", "step": "int64", "tokens": "int64"}
COLUMNS |= {"split": "string", "metric": "string", "value": "float64"}
"""of runs.parquet"""
REMEDY = "take it from where it was packed, or pack the comparison again"
FLOATS = "%.9g"
"""how tables are written; a text of another form stays a text"""

RunRows = dict[tuple[str, int], list[MetricsRow]]
"""by variant and seed"""


def pyarrow() -> Any:
    """The library, with its ``parquet``. Raises ValueError that says how it is installed, if it is not."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        needs = f"packed results are Parquet files, which pyarrow reads and writes; {install_command('packed')}"
        raise ValueError(needs) from None
    return pyarrow


def runs_as_parquet(runs: RunRows, statuses: Mapping[str, Status]) -> bytes:
    """The content of runs.parquet: a row for each number, by variant and seed in the order in which it was recorded.

    ``statuses`` are those of all runs (``<variant>/seed<k>``). What is equal gives equal bytes, by the same pyarrow.
    """
    cells = [
        (*run, row.step, row.tokens, row.split, metric, value)
        for run, rows in sorted(runs.items())
        for row in rows
        for metric, value in row.metrics.items()
    ]
    columns = zip(*cells, strict=True) if cells else [[] for _ in COLUMNS]
    table = pyarrow().table([list(column) for column in columns], schema=_schema())
    return _to_bytes(table, {STATUSES: msgspec.json.encode(dict(sorted(statuses.items())))})


def read_rows(path: Path) -> RunRows:
    """The rows of a runs.parquet. Raises ValueError that names it if it is damaged or has other columns."""
    return _read_runs(path, _version(path))[0]


def read_statuses(path: Path) -> bytes | None:
    """The statuses of a runs.parquet, in JSON; None: it has none. Raises ValueError as read_rows."""
    return _read_runs(path, _version(path))[1]


def _version(path: Path) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=8)  # a report asks for each run by itself
def _read_runs(path: Path, version: tuple[int, ...]) -> tuple[RunRows, bytes | None]:
    schema, content = _schema(), read_file(path, REMEDY)
    try:
        table, metadata = _read(content)
        if not table.schema.equals(schema):
            raise ValueError(f"has other columns, or of other types, than {', '.join(COLUMNS)}")
    except ValueError as error:
        raise wrong_file(str(path), str(error), REMEDY) from None
    runs: RunRows = {}
    for variant, seed, step, tokens, split, metric, value in zip(*table.to_pydict().values(), strict=True):
        rows = runs.setdefault((variant, seed), [])
        if not rows or (rows[-1].step, rows[-1].split) != (step, split):
            rows.append(MetricsRow(step, tokens, split, {}))
        rows[-1].metrics[metric] = value
    return runs, metadata.get(STATUSES)


def texts_as_parquet(table: "pd.DataFrame") -> bytes:
    """A table of texts as a file in which whole numbers and numbers are such; an empty cell among them is a null."""
    return _to_bytes(pyarrow().table({name: _typed(list(table[name])) for name in table}))


def read_texts(content: bytes) -> "pd.DataFrame":
    """The texts of such a file. Raises ValueError if it is damaged."""
    import pandas as pd  # not on import: commands that read no table start without it

    table, _ = _read(content)
    return pd.DataFrame({name: _texts(cells) for name, cells in table.to_pydict().items()}, dtype=str)


def _typed(texts: list[str]) -> Any:
    arrow = pyarrow()
    for convert, kind in ((int, arrow.int64()), (float, arrow.float64())):
        try:
            cells = [convert(text) if text else None for text in texts]
            if any(cell is not None for cell in cells) and _texts(cells) == texts:
                return arrow.array(cells, kind)
        except (ValueError, OverflowError):
            pass
    return arrow.array(texts, arrow.string())


def _texts(cells: list[Any]) -> list[str]:
    return ["" if cell is None else FLOATS % cell if isinstance(cell, float) else str(cell) for cell in cells]


def _schema() -> Any:
    arrow = pyarrow()
    return arrow.schema([(name, arrow.type_for_alias(kind)) for name, kind in COLUMNS.items()])


def _to_bytes(table: Any, metadata: Mapping[bytes, bytes] = {}) -> bytes:
    arrow = pyarrow()
    sink = arrow.BufferOutputStream()
    with arrow.parquet.ParquetWriter(sink, table.schema, compression="zstd") as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _read(content: bytes) -> tuple[Any, dict[bytes, bytes]]:
    """The table and the metadata of a file; a thread that is left would abort a process that ends soon."""
    arrow = pyarrow()
    try:
        file = arrow.parquet.ParquetFile(arrow.BufferReader(content))
        return file.read(use_threads=False), file.metadata.metadata or {}
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"is no Parquet file ({error})") from None
