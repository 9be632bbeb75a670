"""More steps for the runs of a finished comparison: ``run NAME --extend --steps K``.

Up to where its learning rate falls, a run with the schedule "trapezoid" is a longer run too. So it goes on from the
weights that it had there, and where it ended before becomes one of its budgets. How it ended stays in
``<run>/ended-<steps>/``: its metrics and its weights.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from experiments.config import Config
from experiments.records.files import read_file, write_atomically
from experiments.records.record import read_comparison, run_config, run_directory, run_status, write_record
from experiments.records.schema import Comparison
from experiments.records.store import refuse_if_differing
from experiments.run.plan import write_status
from experiments.train.checkpoint import checkpoint_path, read_checkpoint
from experiments.train.schedule import last_constant_step


def extended_config(root: Path, config: Config, given: Mapping[str, Any]) -> Config:
    """The configuration that the comparison in ``root`` goes on with; without ``given`` steps it has those it had.

    Raises:
        ValueError: there is no comparison, or it cannot be given more steps; nothing was written.
    """
    if not (root / "comparison.json").is_file():
        raise ValueError(f"--extend goes on with a comparison, and --out {root} holds none; leave it out")
    if "budgets" in given:
        raise ValueError("--budgets is given with --extend, whose budget is where the runs ended before; leave it out")
    there = Config.of(read_comparison(root).config)
    if "steps" not in given or config.steps == there.steps:
        return replace(config, steps=there.steps, budgets=there.budgets)
    if config.steps < there.steps:
        raise ValueError(f"--steps is {config.steps:,}, and the runs of {root} have {there.steps:,}; give more")
    if there.schedule != "trapezoid":
        raise ValueError(
            f"--extend gives more steps to runs whose learning rate stays at its peak until it falls (--schedule "
            f"trapezoid), and those of {root} have the schedule {there.schedule}, which depends on their end; give "
            "another --out"
        )
    earlier = [] if there.budgets == "none" else [there.budgets]
    return replace(config, budgets=",".join([*earlier, str(there.steps)]))


def was_stopped(root: Path, config: Config) -> bool:
    """Whether ``extend`` was stopped when it had begun: some runs have as many steps, and the comparison not yet."""
    there = read_comparison(root)
    return there.config["steps"] != config.steps and any(_has(root, *run, config.steps) for run in there.runs)


def as_it_was(root: Path, comparison: Comparison) -> Comparison:
    """The comparison, with the steps and budgets that the one in ``root`` has now."""
    there = Config.of(read_comparison(root).config)
    return structs.replace(comparison, config=comparison.config | _length(there))


def extend(root: Path, config: Config) -> None:
    """Give the comparison in ``root`` the steps of ``extended_config``; what is extended already is left alone.

    Raises:
        ValueError: it differs in something else, or a run has lost the weights from before its rate fell; nothing was
            written.
    """
    comparison = read_comparison(root)
    before = Config.of(comparison.config)
    last_constant = last_constant_step(before)
    if before.steps == config.steps or last_constant is None:
        return
    now = replace(before, steps=config.steps, budgets=config.budgets)
    refuse_if_differing(root, vars(now), vars(config))
    runs = [run for run in comparison.runs if _has(root, *run, before.steps)]
    for variant, seed in comparison.runs:
        if run_status(root, variant, seed).state == "done" and not _has(root, variant, seed, config.steps):
            path = checkpoint_path(run_directory(root, variant, seed) / "checkpoint", last_constant)
            try:
                read_checkpoint(path)
            except (ValueError, OSError):
                raise ValueError(
                    f"{variant} seed {seed} of {root} has no weights of step {last_constant:,}, where its learning "
                    f"rate began to fall ({path}), so it cannot be given more steps; give another --out"
                ) from None
    for run in runs:
        _extend_run(root, *run, before.steps, last_constant, now)
    write_record(root / "comparison.json", structs.replace(comparison, config=comparison.config | _length(now)))


def _length(config: Config) -> dict[str, object]:
    return {"steps": config.steps, "budgets": config.budgets}


def _has(root: Path, variant: str, seed: int, steps: int) -> bool:
    """Whether a run was begun, with so many steps."""
    made_with = run_config(root, variant, seed)
    return made_with is not None and made_with.config["steps"] == steps


def _extend_run(root: Path, variant: str, seed: int, steps: int, last_constant: int, config: Config) -> None:
    """Of a run that was stopped anywhere in here, the same again makes what is missing."""
    directory = run_directory(root, variant, seed)
    metrics, ended = directory / "metrics.jsonl", directory / f"ended-{steps}"
    if metrics.exists():
        ended.mkdir(exist_ok=True)
        if not (ended / "metrics.jsonl").exists():
            write_atomically(ended / "metrics.jsonl", read_file(metrics, "remove the run's directory"))
        for weights in (directory / "checkpoint").glob("step*"):
            if weights > checkpoint_path(directory / "checkpoint", last_constant):
                os.replace(weights, ended / weights.name)
        rows = read_file(ended / "metrics.jsonl", "remove the run's directory").splitlines(keepends=True)
        write_atomically(metrics, b"".join(row for row in rows if _is_of_both(row, last_constant)))
    made_with = run_config(root, variant, seed)
    assert made_with is not None
    write_status(directory, "queued", note=f"given more steps: {config.steps:,} in place of {steps:,}")
    changed = structs.replace(made_with, config=made_with.config | _length(config))
    write_record(directory / "config.json", changed)


def _is_of_both(row: bytes, last_constant: int) -> bool:
    """Whether a row of metrics is also one of a run that ends later."""
    read = json.loads(row)
    return read["split"] == "test" or read["step"] <= last_constant
