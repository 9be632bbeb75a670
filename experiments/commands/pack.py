"""The pack command: what is kept in git of a comparison, in a few small files that are read as its directory is.

``run`` goes on in a copy of them, on any machine: what is packed is not trained again.
"""

import json
from collections import Counter
from pathlib import Path
from statistics import median

import pandas as pd
from msgspec import to_builtins
from msgspec.structs import asdict, replace
from torch import Tensor

from experiments.objects import Run
from experiments.records import store
from experiments.records.csv_files import find_table, read_table
from experiments.records.files import read_file, write_atomically
from experiments.records.parquet import RunRows, read_rows, runs_as_parquet, texts_as_parquet
from experiments.records.record import (
    KEPT_EVERY,
    OLDER_STATUSES,
    PACKED_RUNS,
    TRIALS,
    holds_packed,
    is_finished,
    kept_rows,
    packed_statuses,
    read_comparison,
    run_directory,
    run_rows,
    run_status,
)
from experiments.records.schema import Comparison, MetricsRow, PackedStatus, Status
from experiments.studies.registry import STUDIES
from experiments.train.checkpoint import checkpoint_path, read_checkpoint, weights_as_bytes
from experiments.train.tokens import FILE as TOKENIZER
from experiments.train.trained_models import PACKED_SEED, packed_weights

REBUILT = ("curves", "summary")
"""tables that ``report`` makes"""
AS_THEY_ARE = (TOKENIZER, "measurements.jsonl")
WAS_RUNNING = "it was being trained when this was packed"


def pack(directory: Path, out: Path, weights: bool = False) -> int:
    """Pack a comparison, and print what became of its runs. Returns the exit status; raises as ``write_packed``."""
    counts = write_packed(directory, out, weights)
    print(f"{out}: {', '.join(f'{count} {what}' for what, count in sorted(counts.items())) or 'no runs'}")
    return 0


def write_packed(directory: Path, out: Path, weights: bool = False) -> Counter[str]:
    """Pack the comparison in a directory, and its trials of learning rates. Returns how many are in which state.

    Raises:
        ValueError: it is none, something in it is damaged, or what is packed in ``out`` is something else; then nothing
            was written.
    """
    store.check_directory(out)
    files, statuses = _packed(directory, out, weights)
    counts = Counter(f"runs {status.state}" for status in statuses.values())
    if (directory / TRIALS / "comparison.json").exists():
        of_trials, statuses = _packed(directory / TRIALS, out / TRIALS, False)
        files |= of_trials
        counts += Counter(f"trials of learning rates {status.state}" for status in statuses.values())
    for path, content in files.items():
        if not (path.exists() and path.read_bytes() == content):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
    for folder in {path.parent for path in files if path.name == PACKED_RUNS}:
        (folder / OLDER_STATUSES).unlink(missing_ok=True)  # they are in runs.parquet now
    return counts


def _packed(directory: Path, out: Path, weights: bool) -> tuple[dict[Path, bytes], dict[str, PackedStatus]]:
    """What packing the comparison of a directory makes of what is packed in ``out``: files, and statuses of runs.

    Files are in the order in which they are written: a run that was not done counts as done only with the last of them.
    """
    here = read_comparison(directory)
    store.check_runs(directory, here)
    comparison, statuses, rows = here, dict[str, PackedStatus](), RunRows()
    if (out / "comparison.json").exists():
        there = read_comparison(out)
        comparison = _merged(out, there, here)
        if holds_packed(out):
            statuses, rows = packed_statuses(out), dict(read_rows(out / PACKED_RUNS))
        elif any(run_directory(out, *run).exists() for run in there.runs):
            raise ValueError(f"--out {out} holds runs that are not packed; give a directory that is new or packed")
    for run in (Run(*place) for place in here.runs):
        _add_run(directory, out, here, run, statuses, rows)

    record = json.dumps(to_builtins(comparison), indent=2, ensure_ascii=False) + "\n"
    files = {out / "comparison.json": record.encode(errors="backslashreplace")}
    unchanged = ("comparison.json",) if comparison == here else ()
    for name in (*unchanged, *AS_THEY_ARE):
        if (directory / name).is_file():
            files[out / name] = read_file(directory / name, "run the comparison again")
    files |= _tables(directory, out, {*REBUILT, *STUDIES[here.study].rebuilt})
    files |= _weights(directory, out, here) if weights else {}
    if comparison.variants:
        files[out / PACKED_RUNS] = runs_as_parquet(rows, statuses)
    return files, statuses


def packed_rows(comparison: Comparison, rows: list[MetricsRow]) -> list[MetricsRow]:
    """Those of a run's rows that are packed."""
    every = 1 if STUDIES[comparison.study].all_records else KEPT_EVERY
    return kept_rows(rows, comparison.config["steps"], every * comparison.config["log_every"])


def _add_run(
    directory: Path, out: Path, here: Comparison, run: Run, statuses: dict[str, PackedStatus], rows: RunRows
) -> None:
    """Add a run, or put it in the place of one that is not done, unless less is known of it than what is packed."""
    key, status = f"{run.variant}/seed{run.seed}", run_status(directory, *run)
    ended, before = status.state in ("done", "failed"), statuses[key].state if key in statuses else None
    all_rows = run_rows(directory, *run) if ended else []
    kept = packed_rows(here, all_rows)
    if before == "done" == status.state and kept != rows.get(run, []):
        raise ValueError(
            f"--out {out} holds {run} with other records than {directory}: it was trained twice; remove its directory "
            "there, or give another --out"
        )
    if before == "done" or (before == "failed" and not ended) or status == Status(state="queued"):
        return
    if status.state == "running":
        status = replace(status, state="queued", reason=WAS_RUNNING)
    if not isinstance(status, PackedStatus):
        speeds = [row.metrics["tokens_per_second"] for row in all_rows if "tokens_per_second" in row.metrics]
        status = PackedStatus(**asdict(status), tokens_per_second=median(speeds) if speeds else None)
    statuses[key] = status
    rows.pop(run, None)
    if kept:
        rows[run] = kept


def _merged(out: Path, there: Comparison, here: Comparison) -> Comparison:
    """The record of both: that of ``here`` if it went on from the one ``there``, else that with what is new."""
    store.check_can_be_one(out, there, here)
    went_on = here.created == there.created
    variants = {variant.name: variant for variant in there.variants}
    for variant in here.variants:
        known = variants.setdefault(variant.name, variant)
        # A learning rate may be found in one of them only.
        rate = {name: value for name, value in (variant.settings | known.settings).items() if name == "learning_rate"}
        store.refuse_if_differing(out / variant.name, rate | known.settings, rate | variant.settings)
        more = len(variant.settings) - len(known.settings)
        variants[variant.name] = variant if more > 0 or (went_on and more == 0) else known
    merged = replace(
        here if went_on else there,
        variants=list(variants.values()),
        seeds=sorted({*there.seeds, *here.seeds}),
        initial_weights=there.initial_weights | here.initial_weights,
        notes=[note for note in there.notes if not went_on or note.startswith(store.CONTINUED)],
    )
    store.add_notes(merged, here.notes)
    if not went_on:
        store.add_changes(merged, here, all_done=False)
    return merged


def _tables(directory: Path, out: Path, rebuilt: set[str]) -> dict[Path, bytes]:
    """The measured tables. Of runs that only the packed one tells of, its rows stay."""
    names = {path.name.partition(".csv")[0] for path in directory.glob("[!.]*.csv*")}
    names |= {path.stem for path in directory.glob("[!.]*.parquet") if path.name != PACKED_RUNS}
    files = {}
    for name in sorted(names - rebuilt):
        found, packed = find_table(directory / f"{name}.csv"), out / f"{name}.parquet"
        assert found is not None
        table = read_table(found)
        if packed.exists():
            table = _with_other_runs(table, read_table(packed))
        files[packed] = texts_as_parquet(table)
    return files


def _with_other_runs(table: pd.DataFrame, packed: pd.DataFrame) -> pd.DataFrame:
    """A table with the rows of a packed one for runs that it does not have, in the order of runs there."""
    by = [column for column in ("variant", "seed") if column in table and column in packed]
    if not by:
        return table
    runs, before = (pd.MultiIndex.from_frame(each[by]) for each in (table, packed))
    both = pd.concat([table, packed[~before.isin(runs)]]).fillna("")
    order = before.append(runs).unique()
    return both.iloc[order.get_indexer(pd.MultiIndex.from_frame(both[by])).argsort(kind="stable")]


def _weights(directory: Path, out: Path, comparison: Comparison) -> dict[Path, bytes]:
    """By file, the final weights of the first seed of each variant, where they are there and not packed yet."""
    files = {}
    for variant in comparison.variants:
        run, steps = Run(variant.name, PACKED_SEED), comparison.config["steps"]
        path = checkpoint_path(run_directory(directory, *run) / "checkpoint", steps)
        target = packed_weights(out, variant.name)
        if path.exists() and not target.exists() and is_finished(directory, *run, steps):
            weights = read_checkpoint(path).model
            half = {
                name: value.bfloat16() if isinstance(value, Tensor) and value.is_floating_point() else value
                for name, value in weights.items()
            }
            files[target] = weights_as_bytes(half)
    return files
