"""Cells that another comparison has trained already, taken over instead of trained again.

A cell is a pure function of its arm, its configuration, its seed and its data. Only what ``--reuse`` names is looked
at, and a cell that was taken over says so in its status and so in the report.
"""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from experiments.comparison import DEFAULTS
from experiments.record import cell_config, cell_directory, comparison_cells, is_finished
from experiments.report import read_comparison
from experiments.variants import get_variant, is_variant
from experiments.worker import Cell, Job, write_cell_config, write_status


class Trained(NamedTuple):
    """A finished cell of another comparison."""

    root: Path
    cell: Cell
    commit: str


def trained_cells(directory: Path) -> dict[str, Trained]:
    """Every finished cell of the comparisons in a directory, at any depth, by what it is (``_identity``).

    Raises ValueError if there is no such directory, or if a record in it is damaged.
    """
    if not directory.is_dir():
        raise ValueError(f"--reuse: {directory} is no directory; give one that comparisons were written to")
    found: dict[str, Trained] = {}
    for path in sorted(directory.rglob("comparison.json")):
        comparison = read_comparison(path.parent)
        for name, seed in comparison_cells(comparison):
            made_with = cell_config(path.parent, name, seed)
            if made_with is None or not is_variant(name):
                continue
            has_weights = any((cell_directory(path.parent, name, seed) / "checkpoint").glob("*"))
            if has_weights and is_finished(path.parent, name, seed, made_with["config"]["steps"]):
                device = comparison["machine"].get("device") == "cpu"
                identity = _identity(name, made_with["config"], seed, made_with["data_sha256"], device)
                found.setdefault(identity, Trained(path.parent, Cell(name, seed), comparison["git"]["commit"]))
    return found


def take_over(job: Job, cells: list[Cell], trained: dict[str, Trained]) -> dict[Cell, Trained]:
    """Copy what is there of ``cells``; returns where each was. A cell that has begun is left alone."""
    taken = {}
    for cell in cells:
        config = asdict(job.config_of(cell.variant))
        there = trained.get(_identity(cell.variant, config, cell.seed, job.data_sha256, job.device == "cpu"))
        directory = cell_directory(job.root, cell.variant, cell.seed)
        if there is None or (directory / "metrics.jsonl").exists():
            continue
        _copy(job, cell, there)
        taken[cell] = there
    return taken


def _copy(job: Job, cell: Cell, there: Trained) -> None:
    source = cell_directory(there.root, there.cell.variant, there.cell.seed)
    directory = cell_directory(job.root, cell.variant, cell.seed)
    shutil.rmtree(directory / "checkpoint", ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    write_cell_config(job, cell)
    shutil.copytree(source / "checkpoint", directory / "checkpoint", ignore=shutil.ignore_patterns(".*"))
    # Last, and whole: with its metrics on record a cell has begun.
    temporary = directory / f".metrics.{os.getpid()}.tmp"
    shutil.copyfile(source / "metrics.jsonl", temporary)
    os.replace(temporary, directory / "metrics.jsonl")
    where = f"{there.root.name}, {there.cell}"
    write_status(job, cell, "done", note=f"taken over from {where}, trained there at commit {there.commit[:12]}")


def _identity(variant: str, config: dict[str, Any], seed: int, data_sha256: str, on_cpu: bool) -> str:
    arm = get_variant(variant)
    return json.dumps([arm.kernel, arm.position, DEFAULTS | config, seed, data_sha256, on_cpu], sort_keys=True)
