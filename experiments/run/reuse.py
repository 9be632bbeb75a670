"""Runs that another comparison has trained already, taken over instead of trained again.

A run is a pure function of its variant, its configuration, its seed, its data and its software. Only what ``--reuse``
names is looked at, and a run that was taken over says so in its status and so in the report.
"""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from experiments.objects import Run
from experiments.records import environment
from experiments.records.files import sync_directory, write_atomically
from experiments.records.record import is_finished, read_comparison, run_config, run_directory, run_status, write_record
from experiments.records.schema import Origin, RunConfig, Software
from experiments.records.store import DEFAULTS
from experiments.run.plan import Training, run_config_of, write_status
from experiments.train.checkpoint import read_checkpoint
from experiments.variants import get_variant, is_variant


class ReusableRun(NamedTuple):
    """A finished run of another comparison."""

    root: Path
    run: Run
    commit: str
    trained_with: list[Software]


def reusable_runs(directory: Path, passed_over: list[str]) -> dict[str, ReusableRun]:
    """Every finished run of the comparisons in a directory, at any depth, by what it is (``_identity``).

    A run is left out that does not say by which one kernel and PyTorch it was trained. So is a comparison with a
    damaged record; ``passed_over`` gets a sentence on it. Raises ValueError if there is no such directory.
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
    is_cpu = comparison.machine.get("device") == "cpu"
    for run in (Run(*place) for place in comparison.runs if is_variant(place[0])):
        made_with, software = run_config(root, *run), run_status(root, *run).trained_with
        if made_with is None or len({(each.torch, each.kernel) for each in software}) != 1:
            continue
        steps = made_with.config.get("steps")  # a record of another version need not have it
        if isinstance(steps, int) and is_finished(root, *run, steps):
            identity = _identity(made_with, is_cpu, software[0], comparison.plugins)
            found[identity] = ReusableRun(root, run, comparison.git.commit, software)
    return found


def take_over(training: Training, runs: list[Run], reusable: dict[str, ReusableRun]) -> dict[Run, ReusableRun]:
    """Copy what is there of ``runs``; returns where each was. A run that has begun is left alone.

    So is one of which a checkpoint is damaged there. Raises OSError if something cannot be read or written; what was
    taken over until then is whole.
    """
    taken = {}
    is_cpu, software = training.device == "cpu", environment.software(training.device)
    for run in runs:
        there = reusable.get(_identity(run_config_of(training, run), is_cpu, software, training.plugins))
        has_begun = training.is_finished(run) or (training.job(run).directory / "metrics.jsonl").exists()
        if there is not None and not has_begun and _is_whole(there, training.config.steps):
            _copy(training, run, there)
            taken[run] = there
    return taken


def _is_whole(there: ReusableRun, steps: int) -> bool:
    checkpoints = sorted((run_directory(there.root, *there.run) / "checkpoint").glob("step*"))
    try:
        return bool(checkpoints) and [read_checkpoint(path).step for path in checkpoints][-1] == steps
    except (ValueError, OSError):
        return False


def _copy(training: Training, run: Run, there: ReusableRun) -> None:
    """Make the run under another name, then rename it: at any moment all of it is there, or nothing."""
    directory, made = training.job(run).directory, training.root / ".taking-over"
    shutil.rmtree(made, ignore_errors=True)  # of one that was killed
    try:
        source = run_directory(there.root, *there.run)
        shutil.copytree(source / "checkpoint", made / "checkpoint", copy_function=_copy_to_disk)
        _copy_to_disk(source / "metrics.jsonl", made / "metrics.jsonl")
        write_record(made / "config.json", run_config_of(training, run))
        note = f"taken over from {there.root.name}, {there.run}, trained there at commit {there.commit[:12]}"
        write_status(made, "done", note=note, trained_with=there.trained_with)
        directory.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(directory, ignore_errors=True)  # what a run left that was stopped before its first record
        os.replace(made, directory)
        sync_directory(directory.parent)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _copy_to_disk(source: str | Path, to: str | Path) -> None:
    write_atomically(Path(to), Path(source).read_bytes())


def _identity(made_with: RunConfig, is_cpu: bool, software: Software, plugins: Iterable[Origin]) -> str:
    """What changes the bits of a run; neither its variant's name nor the directory of the weights it begins with."""
    variant = get_variant(made_with.variant)
    begins_with = {"initial_weights": ""} if made_with.initial_weights_sha256 else {}
    config = DEFAULTS | made_with.config | begins_with
    model = variant.kernel, variant.position, variant.pattern, config
    data = made_with.seed, made_with.data_sha256, made_with.initial_weights_sha256
    code = sorted((origin.module, origin.sha256) for origin in plugins)
    what = [*model, *data, is_cpu, software.torch, software.kernel, code]
    return json.dumps(what, sort_keys=True)
