"""Cells that another comparison has trained already, taken over instead of trained again.

A cell is a pure function of its arm, its configuration, its seed and its data. Only what ``--reuse`` names is looked
at, and a cell that was taken over says so in its status and so in the report.
"""

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from experiments.launch.worker import Cell, Job, write_cell_config, write_status
from experiments.records import environment
from experiments.records.record import (
    cell_config,
    cell_directory,
    comparison_cells,
    is_finished,
    sync_directory,
    write_atomically,
)
from experiments.records.store import CONTINUED, DEFAULTS
from experiments.report.report import read_comparison
from experiments.training.checkpoint import checkpoint_path, is_whole
from experiments.variants import get_variant, is_variant

UNFINISHED = ".taking-over-"
"""how the directory that cells are copied into begins; the number of the process follows"""


class Trained(NamedTuple):
    """A finished cell of another comparison."""

    root: Path
    cell: Cell
    commit: str
    code_sha256: str


def trained_cells(directory: Path, passed_over: list[str]) -> dict[str, Trained]:
    """Every finished cell of the comparisons in a directory, at any depth, by what it is (``_identity``).

    A cell whose final weights are gone is left out: what is measured on trained models needs them. So is a comparison
    with a damaged record, and ``passed_over`` gets a sentence on it. Raises ValueError if there is no such directory.
    """
    if not directory.is_dir():
        raise ValueError(f"--reuse: {directory} is no directory; give one that comparisons were written to")
    found: dict[str, Trained] = {}
    for path in sorted(directory.rglob("comparison.json")):
        try:
            of_comparison = _trained_cells_of(path.parent)
        except ValueError as error:
            passed_over.append(f"no cells are taken over from {path.parent}: {error}")
            continue
        found = of_comparison | found
    return found


def _trained_cells_of(root: Path) -> dict[str, Trained]:
    found: dict[str, Trained] = {}
    comparison = read_comparison(root)
    git, machine = comparison["git"], _machine_of(comparison)
    for name, seed in comparison_cells(comparison):
        made_with = cell_config(root, name, seed)
        if made_with is None or not is_variant(name):
            continue
        steps = made_with["config"].get("steps")
        if not isinstance(steps, int) or not is_finished(root, name, seed, steps):
            continue
        if checkpoint_path(cell_directory(root, name, seed) / "checkpoint", steps).is_dir():
            identity = _identity(name, made_with["config"], seed, made_with["data_sha256"], machine)
            found[identity] = Trained(root, Cell(name, seed), git["commit"], git.get("code_sha256", ""))
    return found


def take_over(job: Job, cells: list[Cell], trained: dict[str, Trained]) -> dict[Cell, Trained]:
    """Copy what is there of ``cells``; returns where each was. A cell that has begun is left alone.

    So is one whose weights are damaged there. Raises OSError if something cannot be read or written; what was taken
    over until then is whole.
    """
    for leftover in job.root.glob(f"{UNFINISHED}*"):
        shutil.rmtree(leftover)
    taken = {}
    machine = {"cpu": job.device == "cpu", "torch": environment.versions()["torch"]}
    for cell in cells:
        config = asdict(job.config_of(cell.variant))
        there = trained.get(_identity(cell.variant, config, cell.seed, job.data_sha256, machine))
        has_begun = (cell_directory(job.root, cell.variant, cell.seed) / "metrics.jsonl").exists()
        if there is not None and not has_begun and is_whole(_weights(there.root, there.cell, job.config.steps)):
            _copy(job, cell, there)
            taken[cell] = there
    return taken


def _copy(job: Job, cell: Cell, there: Trained) -> None:
    """Make the cell under another name, then rename it: at any moment all of it is there, or nothing."""
    source = cell_directory(there.root, there.cell.variant, there.cell.seed)
    directory = cell_directory(job.root, cell.variant, cell.seed)
    elsewhere = replace(job, root=job.root / f"{UNFINISHED}{os.getpid()}")
    made, weights = (
        cell_directory(elsewhere.root, cell.variant, cell.seed),
        _weights(elsewhere.root, cell, job.config.steps),
    )
    try:
        weights.mkdir(parents=True)
        write_cell_config(elsewhere, cell)
        for path in _weights(there.root, there.cell, job.config.steps).iterdir():
            write_atomically(weights / path.name, path.read_bytes())
        write_atomically(made / "metrics.jsonl", (source / "metrics.jsonl").read_bytes())
        where = f"{there.root.name}, {there.cell}"
        note = f"taken over from {where}, trained there at commit {there.commit[:12]}"
        write_status(elsewhere, cell, "done", note=note)
        directory.parent.mkdir(parents=True, exist_ok=True)
        # What a run left that was stopped before the cell's first record.
        shutil.rmtree(directory, ignore_errors=True)
        os.replace(made, directory)
        sync_directory(directory.parent)
    finally:
        shutil.rmtree(elsewhere.root, ignore_errors=True)


def _weights(root: Path, cell: Cell, steps: int) -> Path:
    """The cell's checkpoint after so many steps."""
    return checkpoint_path(cell_directory(root, cell.variant, cell.seed) / "checkpoint", steps)


def other_code(taken: dict[Cell, Trained], what: str = "cells") -> str | None:
    """A sentence on those that were trained by other code than this, in words for what they are; None for none."""
    code = environment.git()["code_sha256"]
    others = [there for there in taken.values() if there.code_sha256 != code]
    if not others:
        return None
    commits = ", ".join(dict.fromkeys(there.commit[:12] for there in others))
    return f"{CONTINUED} comparison's {what}: {len(others)} were taken over that other code trained (commit {commits})"


def _machine_of(comparison: dict[str, Any]) -> dict[str, Any]:
    """What changes the bits of a trained cell besides its configuration."""
    return {"cpu": comparison["machine"].get("device") == "cpu", "torch": comparison["versions"].get("torch")}


def _identity(variant: str, config: dict[str, Any], seed: int, data_sha256: str, machine: dict[str, Any]) -> str:
    arm = get_variant(variant)
    return json.dumps([arm.kernel, arm.position, DEFAULTS | config, seed, data_sha256, machine], sort_keys=True)
