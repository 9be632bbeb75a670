"""Runs that another comparison has trained already, taken over instead of trained again.

A run is a pure function of its variant, its configuration, its seed, its data and its software. Only what ``--reuse``
names is looked at, and a run that was taken over says so in its status and so in the report.
"""

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from experiments.objects import Run
from experiments.records import environment
from experiments.records.files import LARGEST_CHECKPOINT, read_file, sync_directory, write_atomically
from experiments.records.record import is_finished, read_comparison, run_config, run_directory, run_status
from experiments.records.schema import Origin, RunConfig, Software
from experiments.records.store import CONTINUED, DEFAULTS
from experiments.run.plan import Training, run_config_of, write_run_config, write_status
from experiments.train.checkpoint import averaged_steps, checkpoint_path, read_checkpoint
from experiments.train.schedule import last_constant_step
from experiments.variants import get_variant, is_variant

UNFINISHED = ".taking-over-"
"""how the directory that runs are copied into begins; the number of the process follows"""


class ReusableRun(NamedTuple):
    """A finished run of another comparison."""

    root: Path
    run: Run
    commit: str
    trained_with: list[Software]


def reusable_runs(directory: Path, passed_over: list[str]) -> dict[str, ReusableRun]:
    """Every finished run of the comparisons in a directory, at any depth, by what it is (``_identity``).

    A run that does not say what trained it is left out, as in old records, or that more than one kernel or PyTorch
    trained. So is a comparison with a damaged record; ``passed_over`` gets a sentence on it. Raises ValueError if there
    is no such directory.
    """
    if not directory.is_dir():
        raise ValueError(f"--reuse: {directory} is no directory; give one that comparisons were written to")
    found: dict[str, ReusableRun] = {}
    for path in sorted(directory.rglob("comparison.json")):
        try:
            found = _runs_of(path.parent) | found
        except ValueError as error:
            passed_over.append(f"no runs are taken over from {path.parent}: {error}")
    return found


def _runs_of(root: Path) -> dict[str, ReusableRun]:
    found: dict[str, ReusableRun] = {}
    comparison = read_comparison(root)
    is_cpu, plugins = comparison.machine.get("device") == "cpu", _hashes(comparison.plugins)
    for run in (Run(*place) for place in comparison.runs):
        made_with = run_config(root, *run)
        if made_with is None or not is_variant(run.variant) or not isinstance(made_with.config.get("steps"), int):
            continue
        software = run_status(root, *run).trained_with
        if is_finished(root, *run, made_with.config["steps"]) and len({(x.torch, x.kernel) for x in software}) == 1:
            identity = _identity(made_with, is_cpu, software[0], plugins)
            found[identity] = ReusableRun(root, run, comparison.git.commit, software)
    return found


def take_over(training: Training, runs: list[Run], reusable: dict[str, ReusableRun]) -> dict[Run, ReusableRun]:
    """Copy what is there of ``runs``; returns where each was. A run that has begun is left alone.

    So is one of which a checkpoint that it is measured by is not whole there. Raises OSError if something cannot be
    read or written; what was taken over until then is whole.
    """
    for leftover in training.root.glob(f"{UNFINISHED}*"):
        shutil.rmtree(leftover)
    taken = {}
    software, plugins = environment.software(training.device), _hashes(training.plugins)
    for run in runs:
        there = reusable.get(_identity(run_config_of(training, run), training.device == "cpu", software, plugins))
        if there is None or training.is_finished(run) or (training.job(run).directory / "metrics.jsonl").exists():
            continue
        try:
            for step in _steps(training):
                read_checkpoint(_weights(there.root, there.run, step))
        except (ValueError, OSError):
            continue
        _copy(training, run, there)
        taken[run] = there
    return taken


def _copy(training: Training, run: Run, there: ReusableRun) -> None:
    """Make the run under another name, then rename it: at any moment all of it is there, or nothing."""
    directory = training.job(run).directory
    elsewhere = replace(training, root=training.root / f"{UNFINISHED}{os.getpid()}")
    made = elsewhere.job(run).directory
    try:
        fall = last_constant_step(training.config)  # by which it can be extended
        kept = [fall] if fall and _weights(there.root, there.run, fall).exists() else []
        for step in {*kept, *_steps(training)}:
            weights = _weights(elsewhere.root, run, step)
            weights.mkdir(parents=True)
            for path in _weights(there.root, there.run, step).iterdir():
                write_atomically(weights / path.name, read_file(path, "remove it", LARGEST_CHECKPOINT))
        write_run_config(elsewhere, run)
        metrics = run_directory(there.root, *there.run) / "metrics.jsonl"
        write_atomically(made / "metrics.jsonl", read_file(metrics, "remove it"))
        where = f"{there.root.name}, {there.run}"
        note = f"taken over from {where}, trained there at commit {there.commit[:12]}"
        write_status(made, "done", note=note, trained_with=there.trained_with)
        directory.parent.mkdir(parents=True, exist_ok=True)
        # What a run left that was stopped before the run's first record.
        shutil.rmtree(directory, ignore_errors=True)
        os.replace(made, directory)
        sync_directory(directory.parent)
    finally:
        shutil.rmtree(elsewhere.root, ignore_errors=True)


def _steps(training: Training) -> list[int]:
    """Those whose checkpoints a finished run is measured by: the last one's, or the mean of all that it keeps."""
    config = training.config
    if config.kept_checkpoints == 2:
        return [config.steps]
    return averaged_steps(config.steps, config.checkpoint_every, config.kept_checkpoints)


def _weights(root: Path, run: Run, steps: int) -> Path:
    """The run's checkpoint after so many steps."""
    return checkpoint_path(run_directory(root, *run) / "checkpoint", steps)


def other_code(taken: dict[Run, ReusableRun], what: str = "runs") -> str | None:
    """A sentence on those that were trained by other code than this, in words for what they are; None for none."""
    code = environment.code_sha256()
    others = [there for there in taken.values() if {each.code_sha256 for each in there.trained_with} != {code}]
    if not others:
        return None
    commits = ", ".join(dict.fromkeys(there.commit[:12] for there in others))
    return f"{CONTINUED} comparison's {what}: {len(others)} were taken over that other code trained (commit {commits})"


def _hashes(plugins: Iterable[Origin]) -> list[tuple[str, str]]:
    return sorted((origin.module, origin.sha256) for origin in plugins)


def _identity(made_with: RunConfig, is_cpu: bool, software: Software, plugins: list[tuple[str, str]]) -> str:
    """What changes the bits of a run; neither its variant's name nor the directory of the weights it begins with."""
    variant = get_variant(made_with.variant)
    begins_with = {"initial_weights": ""} if made_with.initial_weights_sha256 else {}
    config = DEFAULTS | made_with.config | begins_with
    data = made_with.seed, made_with.data_sha256, made_with.initial_weights_sha256
    return json.dumps(
        [variant.kernel, variant.position, config, *data, is_cpu, software.torch, software.kernel, plugins],
        sort_keys=True,
    )
