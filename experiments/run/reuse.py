"""Runs that another comparison has trained already, taken over instead of trained again.

A run is a pure function of its variant, its configuration, its seed and its data. Only what ``--reuse`` names is looked
at, and a run that was taken over says so in its status and so in the report.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from experiments.objects import Run
from experiments.records import environment
from experiments.records.files import LARGEST_CHECKPOINT, read_file, sync_directory, write_atomically
from experiments.records.record import TRIALS, is_finished, read_comparison, run_config, run_directory, run_status
from experiments.records.schema import Comparison, Origin, Software
from experiments.records.store import CONTINUED, DEFAULTS
from experiments.run.plan import Training, write_run_config, write_status
from experiments.train.checkpoint import averaged_steps, checkpoint_path, read_checkpoint
from experiments.train.schedule import last_constant_step
from experiments.variants import get_variant, is_variant

UNFINISHED = ".taking-over-"
"""how the directory that runs are copied into begins; the number of the process follows"""


class Trained(NamedTuple):
    """A finished run of another comparison."""

    root: Path
    run: Run
    commit: str
    trained_with: list[Software]


def trained_runs(directory: Path, passed_over: list[str]) -> dict[str, Trained]:
    """Every finished run of the comparisons in a directory, at any depth, by what it is (``_identity``).

    A run whose final weights are gone is left out: what is measured on trained models needs them. So are a comparison
    with a damaged record and runs of which it is not known which one kernel trained them, and ``passed_over`` gets a
    sentence on them. Raises ValueError if there is no such directory.
    """
    if not directory.is_dir():
        raise ValueError(f"--reuse: {directory} is no directory; give one that comparisons were written to")
    found: dict[str, Trained] = {}
    for path in sorted(directory.rglob("comparison.json")):
        try:
            found = _trained_runs_of(path.parent, passed_over) | found
        except ValueError as error:
            passed_over.append(f"no runs are taken over from {path.parent}: {error}")
    return found


def _trained_runs_of(root: Path, passed_over: list[str]) -> dict[str, Trained]:
    found: dict[str, Trained] = {}
    comparison = read_comparison(root)
    is_cpu, plugins = comparison.machine.get("device") == "cpu", _hashes(comparison.plugins)
    recorded = [] if _is_mixed(root, comparison) else [environment.software_of(comparison)]
    mixed = 0
    for run in (Run(*place) for place in comparison.runs):
        made_with = run_config(root, *run)
        steps = None if made_with is None else made_with.config.get("steps")
        if made_with is None or not isinstance(steps, int) or not is_variant(run.variant):
            continue
        if is_finished(root, *run, steps) and _weights(root, run, steps).is_dir():
            trained_with = run_status(root, *run).trained_with or recorded
            if len({(each.torch, each.kernel) for each in trained_with}) != 1:
                mixed += 1
                continue
            machine = is_cpu, trained_with[0].torch, trained_with[0].kernel, plugins
            identity = _identity(
                run, made_with.config, made_with.data_sha256, made_with.initial_weights_sha256, machine
            )
            found[identity] = Trained(root, run, comparison.git.commit, trained_with)
    if mixed:
        passed_over.append(
            f"{mixed} runs are not taken over from {root}: it was continued with another kernel or PyTorch, and they "
            "are of both, or do not say of which"
        )
    return found


def _is_mixed(root: Path, comparison: Comparison) -> bool:
    """Whether the notes say that another kernel or PyTorch than its ``versions`` name trained a part of it."""
    notes = comparison.notes
    if root.name == TRIALS and (root.parent / "comparison.json").exists():
        notes = notes + read_comparison(root.parent).notes
    changed = re.compile(rf"{CONTINUED} set of versions: .*?(\btorch |native kernel .*C\+\+ for )")
    return any(changed.match(note) for note in notes)


def take_over(training: Training, runs: list[Run], trained: dict[str, Trained]) -> dict[Run, Trained]:
    """Copy what is there of ``runs``; returns where each was. A run that has begun is left alone.

    So is one of which a checkpoint that it is measured by is not whole there. Raises OSError if something cannot be
    read or written; what was taken over until then is whole.
    """
    for leftover in training.root.glob(f"{UNFINISHED}*"):
        shutil.rmtree(leftover)
    taken = {}
    software = environment.software(training.device)
    machine = training.device == "cpu", software.torch, software.kernel, _hashes(training.plugins)
    for run in runs:
        config = asdict(training.config_of(run.variant))
        begins_with = training.initial_weights_of(run)
        there = trained.get(_identity(run, config, training.data_sha256, begins_with, machine))
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


def _copy(training: Training, run: Run, there: Trained) -> None:
    """Make the run under another name, then rename it: at any moment all of it is there, or nothing."""
    directory = training.job(run).directory
    elsewhere = replace(training, root=training.root / f"{UNFINISHED}{os.getpid()}")
    made = elsewhere.job(run).directory
    try:
        before_the_fall = last_constant_step(training.config)  # by which it can be extended
        kept = (
            [before_the_fall] if before_the_fall and _weights(there.root, there.run, before_the_fall).exists() else []
        )
        for step in dict.fromkeys([*kept, *_steps(training)]):
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


def other_code(taken: dict[Run, Trained], what: str = "runs") -> str | None:
    """A sentence on those that were trained by other code than this, in words for what they are; None for none."""
    code = environment.git().code_sha256
    others = [there for there in taken.values() if {each.code_sha256 for each in there.trained_with} != {code}]
    if not others:
        return None
    commits = ", ".join(dict.fromkeys(there.commit[:12] for there in others))
    return f"{CONTINUED} comparison's {what}: {len(others)} were taken over that other code trained (commit {commits})"


def _hashes(plugins: Iterable[Origin]) -> list[tuple[str, str]]:
    return sorted((origin.module, origin.sha256) for origin in plugins)


def _identity(
    run: Run,
    config: dict[str, Any],
    data_sha256: str,
    initial_weights_sha256: str,
    machine: tuple[object, ...],
) -> str:
    """What changes the bits of a run; of a machine: is it a CPU, which PyTorch and kernel, the sha256 of plugins.

    Of the weights that it begins with it is what they are, and not the directory that they are in.
    """
    variant = get_variant(run.variant)
    known = DEFAULTS | config | ({"initial_weights": ""} if initial_weights_sha256 else {})
    parts = [variant.kernel, variant.position, known, run.seed, data_sha256, initial_weights_sha256, machine]
    return json.dumps(parts, sort_keys=True)
