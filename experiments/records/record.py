"""The files of a comparison: where they are, how they are written so that none is lost, how they are read.

``<variant>/seed<k>/metrics.jsonl`` is the truth: one JSON object a line, appended, never rewritten, with ``step``,
``tokens``, ``split`` (train, validation or test) and the metrics as further keys. Every table and figure is made from
it. ``comparison.json`` holds what was run, on what, and with what. Every file is checked against schema.py when it is
read.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments.records.schema import check_metrics_row, check_run_config, check_status
from experiments.records.strict_json import Source, parse_json

WALL_CLOCK = ("seconds", "tokens_per_second")
"""metrics that differ from run to run; all others are the same on the same machine"""


def run_directory(root: Path, variant: str, seed: int) -> Path:
    return root / variant / f"seed{seed}"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that at any moment, also after a power cut, either the old or the new content is there, whole.

    What UTF-8 cannot hold (a name of bytes that are not text) is written as its escape, which JSON reads back.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        # On a full disk what was half written would take the room that the next record needs.
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the renames in a directory durable, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(directory: Path) -> None:
    """Remove what writers that were killed left half written in a directory; its lock must be held."""
    for leftover in directory.glob(".*.tmp"):
        if not leftover.is_dir():
            leftover.unlink()


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


def read_metrics(path: Path, remedy: str = "remove the run's directory") -> list[dict[str, Any]]:
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


def comparison_runs(comparison: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """(variant name, seed) of every run of a parsed comparison.json."""
    for variant in comparison["variants"]:
        for seed in comparison["seeds"]:
            yield variant["name"], seed


def run_status(root: Path, variant: str, seed: int) -> dict[str, Any]:
    """The parsed status.json of a run: ``state`` is queued, running, done or failed; ``reason`` says why failed.

    Raises ValueError that names the file if it is not as ``schema.Status`` says.
    """
    path = run_directory(root, variant, seed) / "status.json"
    if not path.exists():
        return {"state": "queued", "reason": None}
    status = read_json(path)
    check_status(status, Source(str(path), "remove it and run again"))
    return dict(status)


def is_finished(root: Path, variant: str, seed: int, steps: int) -> bool:
    """Whether a run's status is done and its test figure, after ``steps`` steps, is on record.

    Raises ValueError that names the file if its status is damaged.
    """
    if run_status(root, variant, seed)["state"] != "done":
        return False
    try:
        rows = read_metrics(run_directory(root, variant, seed) / "metrics.jsonl")
    except ValueError:
        return False
    return any((row["step"], row["split"]) == (steps, "test") for row in rows)


def run_config(root: Path, variant: str, seed: int) -> dict[str, Any] | None:
    """The parsed config.json of a run; None if there is none.

    Raises ValueError that names the file if it is not as ``schema.RunConfig`` says, or is that of another run.
    """
    path = run_directory(root, variant, seed) / "config.json"
    if not path.exists():
        return None
    source = Source(str(path), "remove it and run again")
    config = read_json(path)
    check_run_config(config, source)
    if (config["variant"], config["seed"]) != (variant, seed):
        raise source.error(f" is that of {config['variant']} seed {config['seed']}, not of {variant} seed {seed}")
    return dict(config)


class MetricsLog:
    """The metrics.jsonl of a run, open for appending. A row that is already there is not written twice.

    So a run that resumes from a checkpoint older than its last row repeats the steps, and only the rows after that
    row are new. The repeated ones must equal the recorded ones, as they do on the CPU; ``note`` is told if not.
    """

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        self._note = note
        self._differed = False
        if path.exists():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(path, whole)
                note(f"an unfinished last line of {path.name} was dropped")
        else:
            path.touch()
            sync_directory(path.parent)
        self._written = {(row["step"], row["split"]): row for row in read_metrics(path)}
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by __exit__

    def has(self, step: int, split: str) -> bool:
        """Whether the row of a step and split is on record."""
        return (step, split) in self._written

    def append(self, step: int, tokens: int, split: str, metrics: dict[str, float]) -> None:
        """Append one row, on the disk before this returns. Raises OSError if it cannot be written; then no part is."""
        row = {"step": step, "tokens": tokens, "split": split, **metrics}
        if (step, split) in self._written:
            self._compare(row, self._written[step, split])
            return
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        end = os.fstat(self._file.fileno()).st_size
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError:
            os.truncate(self._file.fileno(), end)
            raise
        self._written[step, split] = row

    def _compare(self, row: dict[str, Any], recorded: dict[str, Any]) -> None:
        differing = [key for key in row if key not in WALL_CLOCK and row[key] != recorded.get(key)]
        if differing and not self._differed:
            self._differed = True
            key = differing[0]
            self._note(
                f"step {row['step']} was trained again from a checkpoint and did not repeat exactly: {row['split']} "
                f"{key} {row[key]!r}, on record {recorded.get(key)!r}; the curve is of two trajectories"
            )

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
