"""The files of a comparison: where they are, how they are written so that none is lost, how they are read.

``<variant>/seed<k>/metrics.jsonl`` is the truth: one JSON object a line, appended, never rewritten, with ``step``,
``tokens``, ``split`` (train, validation or test) and the metrics as further keys. Every table and figure is made from
it. ``comparison.json`` holds what was run, on what, and with what.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pandas as pd

METRIC_INDEX = ("step", "tokens", "split")
CURVE_COLUMNS = ["variant", "seed", "step", "tokens", "split", "metric", "value"]


def cell_directory(root: Path, variant: str, seed: int) -> Path:
    return root / variant / f"seed{seed}"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that at any moment either the old or the new content is there, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content  # odd file names
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The parsed file. Raises ValueError that names the file if it is not JSON, or OSError if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not readable as JSON ({error}); remove it and run again") from None


def read_metrics(path: Path, remedy: str = "remove the cell's directory") -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; an unfinished last line (its writer was killed) is left out.

    Raises ValueError that names a damaged line and says what to do.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except ValueError:
            raise ValueError(f"{path}, line {number} is not JSON; {remedy} and run again") from None
        rows.append(row)
    return rows


def comparison_cells(comparison: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """(variant name, seed) of every cell of a parsed comparison.json."""
    for variant in comparison["variants"]:
        for seed in comparison["seeds"]:
            yield variant["name"], seed


def cell_status(root: Path, variant: str, seed: int) -> dict[str, Any]:
    """The parsed status.json of a cell: ``state`` is queued, running, done or failed; ``reason`` says why failed."""
    path = cell_directory(root, variant, seed) / "status.json"
    return read_json(path) if path.exists() else {"state": "queued", "reason": None}


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
