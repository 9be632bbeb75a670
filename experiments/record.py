"""The files of a comparison: where they are, how they are written so that none is lost, how they are read.

``<variant>/seed<k>/metrics.jsonl`` is the truth: one JSON object a line, appended, never rewritten, with ``step``,
``tokens``, ``split`` (train, validation or test) and the metrics as further keys. Every table and figure is made from
it. ``comparison.json`` holds what was run, on what, and with what. Every file is checked against schema.py when it is
read.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pandas as pd

from experiments.schema import (
    METRIC_INDEX,
    Source,
    check_cell_config,
    check_metrics_row,
    check_status,
    parse_json,
)

CURVE_COLUMNS = ["variant", "seed", "step", "tokens", "split", "metric", "value"]


def cell_directory(root: Path, variant: str, seed: int) -> Path:
    return root / variant / f"seed{seed}"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that at any moment either the old or the new content is there, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_file(path: Path, source: Source) -> bytes:
    """The content of a file. Raises ValueError if it is none, or cannot be read."""
    try:
        if path.is_file():
            return path.read_bytes()
        problem = "there is no such file" if not path.exists() else "it is no file"
    except OSError as error:
        problem = str(error.strerror)
    raise source.error(f" cannot be read ({problem})")


def read_json(path: Path, remedy: str = "remove it and run again") -> Any:
    """The parsed file. Raises ValueError that names the file if it cannot be read or is not JSON."""
    source = Source(str(path), remedy)
    return parse_json(read_file(path, source), source)


def read_lines(path: Path, remedy: str) -> Iterator[tuple[Any, Source]]:
    """The value of each line of a JSON lines file, and where it was read; nothing if there is no such file.

    An unfinished last line (its writer was killed) is left out. Raises ValueError that names a damaged line and says
    what to do.
    """
    if not path.exists():
        return
    content = read_file(path, Source(str(path), f"{remedy} and run again"))
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        source = Source(f"{path}, line {number}", f"{remedy} and run again")
        yield parse_json(line, source), source


def read_metrics(path: Path, remedy: str = "remove the cell's directory") -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, as ``schema.MetricsRow`` says; an unfinished last line is left out.

    Raises ValueError that names a damaged line, or one whose step and split were there before, and says what to do.
    """
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for row, source in read_lines(path, remedy):
        check_metrics_row(row, source)
        key = (row["step"], row["split"])
        if key in rows:
            raise source.error(f": the {row['split']} split has a row for step {row['step']} already")
        rows[key] = row
    return list(rows.values())


def comparison_cells(comparison: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """(variant name, seed) of every cell of a parsed comparison.json."""
    for variant in comparison["variants"]:
        for seed in comparison["seeds"]:
            yield variant["name"], seed


def cell_status(root: Path, variant: str, seed: int) -> dict[str, Any]:
    """The parsed status.json of a cell: ``state`` is queued, running, done or failed; ``reason`` says why failed.

    Raises ValueError that names the file if it is not as ``schema.Status`` says.
    """
    path = cell_directory(root, variant, seed) / "status.json"
    if not path.exists():
        return {"state": "queued", "reason": None}
    status = read_json(path)
    check_status(status, Source(str(path), "remove it and run again"))
    return dict(status)


def cell_config(root: Path, variant: str, seed: int) -> dict[str, Any] | None:
    """The parsed config.json of a cell; None if there is none.

    Raises ValueError that names the file if it is not as ``schema.CellConfig`` says, or is that of another cell.
    """
    path = cell_directory(root, variant, seed) / "config.json"
    if not path.exists():
        return None
    source = Source(str(path), "remove it and run again")
    config = read_json(path)
    check_cell_config(config, source)
    if (config["variant"], config["seed"]) != (variant, seed):
        raise source.error(f" is that of {config['variant']} seed {config['seed']}, not of {variant} seed {seed}")
    return dict(config)


def read_curves(root: Path, comparison: dict[str, Any]) -> pd.DataFrame:
    """Every recorded number of a comparison as a long table with the columns of curves.csv."""
    records = [
        (variant, seed, row["step"], row["tokens"], row["split"], metric, value)
        for variant, seed in comparison_cells(comparison)
        for row in read_metrics(cell_directory(root, variant, seed) / "metrics.jsonl")
        for metric, value in row.items()
        if metric not in METRIC_INDEX
    ]
    return pd.DataFrame.from_records(records, columns=CURVE_COLUMNS)


class MetricsLog:
    """The metrics.jsonl of a cell, open for appending. A row that is already there is not written twice.

    So a cell that resumes from a checkpoint older than its last row repeats the steps, and only the rows after that
    row are new; on the CPU the repeated ones would be equal.
    """

    def __init__(self, file: IO[bytes], written: set[tuple[int, str]]) -> None:
        self._file = file
        self._written = written

    @classmethod
    def open(cls, path: Path) -> tuple["MetricsLog", list[str]]:
        """The log at ``path``, made if needed, and a sentence if an unfinished last line had to be dropped."""
        notes = []
        if path.exists():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(path, whole)
                notes.append(f"an unfinished last line of {path.name} was dropped")
        written = {(row["step"], row["split"]) for row in read_metrics(path)}
        return cls(open(path, "ab"), written), notes

    def append(self, step: int, tokens: int, split: str, metrics: dict[str, float]) -> None:
        """Append one row, on the disk before this returns."""
        if (step, split) in self._written:
            return
        self._written.add((step, split))
        row = {"step": step, "tokens": tokens, "split": split, **metrics}
        self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
