"""The files of a comparison: where they are, and how they are read and written as the types of schema.py.

``<variant>/seed<k>/metrics.jsonl`` is the truth: one JSON object a line, appended, never rewritten (``run --extend``
keeps that of the shorter run beside it), with ``step``, ``tokens``, ``split`` (train, validation or test) and the
metrics as further keys. Every table and figure is made from it. ``comparison.json`` holds what was run, on what, and
with what. Where results are packed, ``runs.parquet`` holds the rows and the statuses of all runs; a run that has a
directory besides went on, or was begun anew, there. The config.json of a packed run would repeat comparison.json: its
``config``, with the variant's ``settings``, and the sha256 of its data (``store.check_runs``).
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from experiments.records.files import open_to_append, read_file, sync_directory, write_json, wrong_file
from experiments.records.parquet import read_rows, read_statuses
from experiments.records.schema import Comparison, MetricsRow, PackedStatus, RunConfig, Split, Status

WALL_CLOCK = ("seconds", "tokens_per_second", "kernel_share")
"""metrics that differ from run to run; all others are the same on the same machine"""
PACKED_RUNS, OLDER_STATUSES = "runs.parquet", "runs.json"
"""of packed results; those that an older version packed have the statuses in the second"""
KEPT_EVERY = 10
"""of the rows of training, one of so many is packed, and the last; all where ``Study.all_records``"""
TRIALS = "tuning"
"""directory of a comparison's trials of learning rates, which are a comparison too"""

T = TypeVar("T")


def run_directory(root: Path, variant: str, seed: int) -> Path:
    return root / variant / f"seed{seed}"


def decoded(content: bytes, kind: type[T], where: str, remedy: str) -> T:
    """A JSON text as a value of a type. Raises ValueError, one line that begins with ``where``, if it is not one."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        problem = f"{problem[:1].lower()}{problem[1:]}"
        said = f"at {place.strip('`')}: {problem}" if place else f"is wrong: {problem}"
        raise wrong_file(where, said, remedy) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise wrong_file(where, f"is not JSON ({error})", remedy) from None


def read_record(path: Path, kind: type[T], remedy: str = "remove it and run again") -> T:
    """The record in a file. Raises ValueError that names the file if it cannot be read or is not of that type."""
    return decoded(read_file(path, remedy), kind, str(path), remedy)


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Write a record as indented JSON."""
    write_json(path, msgspec.to_builtins(record))


def read_comparison(root: Path) -> Comparison:
    """The comparison.json of a directory. Raises ValueError, one line, if there is none or it is damaged."""
    path = root / "comparison.json"
    if not path.exists():
        raise ValueError(f"{root} holds no comparison.json; give the directory that `run` wrote (its --out)")
    return read_record(path, Comparison, "run the comparison again to write it anew")


def read_lines(path: Path, remedy: str) -> Iterator[tuple[bytes, str, str]]:
    """Each line of a JSON lines file, if there is one, where it stands in words, and what to do if it is wrong.

    An unfinished last line (its writer was killed) is left out.
    """
    if path.exists():
        for number, line in enumerate(read_file(path, remedy).split(b"\n")[:-1], start=1):
            yield line, f"{path}, line {number}", f"{remedy} and run again"


def read_metrics(path: Path, remedy: str = "remove the run's directory") -> list[MetricsRow]:
    """The rows of a metrics.jsonl. Raises ValueError that names a damaged line, or one that is there twice."""
    rows: dict[tuple[int, str], MetricsRow] = {}
    for line, where, then in read_lines(path, remedy):
        values = decoded(line, dict[str, Any], where, then)
        try:
            place = {name: values.pop(name) for name in ("step", "tokens", "split")}
            row = msgspec.convert({**place, "metrics": values}, MetricsRow)
        except (KeyError, msgspec.ValidationError) as error:
            said = f"lacks {error.args[0]}" if isinstance(error, KeyError) else f"is wrong: {error}"
            raise wrong_file(where, said, then) from None
        if rows.setdefault((row.step, row.split), row) is not row:
            raise wrong_file(where, f"is wrong: the {row.split} split has a row for step {row.step} already", then)
    return list(rows.values())


def is_packed(root: Path, variant: str, seed: int) -> bool:
    """Whether what is known of a run is what was packed."""
    return holds_packed(root) and not run_directory(root, variant, seed).exists()


def holds_packed(root: Path) -> bool:
    """Whether a directory holds packed runs."""
    return any((root / name).exists() for name in (PACKED_RUNS, OLDER_STATUSES))


def packed_statuses(root: Path) -> dict[str, PackedStatus]:
    """By run (``<variant>/seed<k>``), the statuses of packed results. Raises ValueError if the file is damaged."""
    path, kind, remedy = root / PACKED_RUNS, dict[str, PackedStatus], "take it from where it was packed"
    found = read_statuses(path) if path.exists() else None
    if found is not None:
        return decoded(found, kind, f"{path}: its statuses", remedy)
    if path.exists() and not (root / OLDER_STATUSES).exists():
        raise wrong_file(str(path), "has no statuses of its runs", remedy)
    return read_record(root / OLDER_STATUSES, kind, remedy)


def run_rows(root: Path, variant: str, seed: int) -> list[MetricsRow]:
    """The rows of a run, packed or not. Raises ValueError that names the file if they are damaged."""
    if is_packed(root, variant, seed):
        return read_rows(root / PACKED_RUNS).get((variant, seed), [])
    return read_metrics(run_directory(root, variant, seed) / "metrics.jsonl")


def kept_rows(rows: list[MetricsRow], steps: int, every: int) -> list[MetricsRow]:
    """The rows of a run of ``steps`` that are packed, with those of training at every so many steps."""
    return [row for row in rows if row.split != "train" or row.step % every == 0 or row.step == steps]


def run_status(root: Path, variant: str, seed: int) -> Status:
    """The status of a run, packed or not. Raises ValueError that names the file if it is damaged."""
    if is_packed(root, variant, seed):
        return packed_statuses(root).get(f"{variant}/seed{seed}", Status(state="queued"))
    path = run_directory(root, variant, seed) / "status.json"
    return read_record(path, Status) if path.exists() else Status(state="queued")


def packed_speeds(root: Path, comparison: Comparison) -> dict[tuple[str, int], float]:
    """By run, the median tokens per second of a packed one, where that is on record."""
    if not holds_packed(root):
        return {}
    statuses = packed_statuses(root)
    found = {run: statuses.get("{}/seed{}".format(*run)) for run in comparison.runs if is_packed(root, *run)}
    return {run: each.tokens_per_second for run, each in found.items() if each and each.tokens_per_second is not None}


def planned_runs(root: Path, comparison: Comparison) -> list[tuple[str, int]]:
    """(variant name, seed) of every run that is made, or is to be.

    Of trials of learning rates all have the first seed, and few another one: those are prepared when the search for the
    best rate asks for them. Raises ValueError if packed statuses are damaged.
    """

    def is_there(run: tuple[str, int]) -> bool:
        return run_directory(root, *run).exists() or run_status(root, *run).state != "queued"

    are_trials = root.absolute().name == TRIALS
    return [run for run in comparison.runs if not are_trials or run[1] == comparison.seeds[0] or is_there(run)]


def is_finished(root: Path, variant: str, seed: int, steps: int) -> bool:
    """Whether a run is done and its test figure is on record.

    Raises ValueError if its status is damaged, or its packed rows cannot be read: it would be trained again.
    """
    if run_status(root, variant, seed).state == "done":
        with nullcontext() if is_packed(root, variant, seed) else suppress(ValueError):
            rows = run_rows(root, variant, seed)
            return any((row.step, row.split) == (steps, "test") for row in rows)
    return False


def run_config(root: Path, variant: str, seed: int) -> RunConfig | None:
    """The config.json of a run, if there is one. Raises ValueError if it is damaged, or is that of another run."""
    path = run_directory(root, variant, seed) / "config.json"
    if not path.exists():
        return None
    config = read_record(path, RunConfig)
    if (config.variant, config.seed) != (variant, seed):
        problem = f"is that of {config.variant} seed {config.seed}, not of {variant} seed {seed}"
        raise wrong_file(str(path), problem, "remove it and run again")
    return config


class MetricsLog:
    """The metrics.jsonl of a run, open for appending. A row that is already there is not written twice.

    So a run that resumes from a checkpoint older than its last row repeats the steps, and only the rows after that
    row are new. The repeated ones must equal the recorded ones, as they do on the CPU; ``note`` is told if not.

    One that does not write, of a process beside the one that does, knows the rows too. ``check`` is called before a row
    is written, and raises if it must not be; ``follow`` is told every row that was written, once it is on the disk.
    """

    def __init__(
        self,
        path: Path,
        note: Callable[[str], None],
        writes: bool = True,
        follow: Callable[[MetricsRow], None] = lambda row: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._note, self._follow, self._check = note, follow, check
        self._differed = False
        self._written = {(row.step, row.split): row for row in read_metrics(path)}
        self._file = open_to_append(path) if writes else None
        if self._file is not None:
            sync_directory(path.parent)
            content = path.read_bytes()
            if content and not content.endswith(b"\n"):
                self._file.truncate(content.rfind(b"\n") + 1)
                note(f"an unfinished last line of {path.name} was dropped")

    def has(self, step: int, split: str) -> bool:
        """Whether the row of a step and split is on record."""
        return (step, split) in self._written

    def values(self, split: str, metric: str) -> dict[int, float]:
        """A metric of a split by step, as it is on record."""
        return {step: row.metrics[metric] for (step, of), row in self._written.items() if of == split}

    def append(self, step: int, tokens: int, split: Split, metrics: dict[str, float]) -> None:
        """Append one row, on the disk before this returns. Raises OSError if it cannot be written; then no part is."""
        if self.has(step, split):
            self._compare(self._written[step, split], {"tokens": tokens, **metrics})
            return
        row = MetricsRow(step, tokens, split, metrics)
        if self._file is None:
            self._written[step, split] = row
            return
        line = json.dumps({"step": step, "tokens": tokens, "split": split, **metrics}, allow_nan=False).encode() + b"\n"
        self._check()
        end = os.fstat(self._file.fileno()).st_size
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError:
            os.truncate(self._file.fileno(), end)
            raise
        self._written[step, split] = row
        self._follow(row)

    def _compare(self, row: MetricsRow, found: dict[str, float]) -> None:
        before = {**row.metrics, "tokens": row.tokens}
        differing = [key for key in found if key not in WALL_CLOCK and found[key] != before.get(key)]
        if differing and not self._differed:
            self._differed = True
            key = differing[0]
            self._note(
                f"step {row.step} was trained again from a checkpoint and did not repeat exactly: {row.split} {key} "
                f"{found[key]!r}, on record {before.get(key)!r}; the curve is of two trajectories"
            )

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()
