"""Where runs are trained: on which device, by which launcher, and how many at a time."""

import math
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from experiments.commands.plan import Plan
from experiments.console import available_cores
from experiments.objects import Needs, parse_needs
from experiments.options import RunOptions
from experiments.records.record import read_comparison, run_rows
from experiments.run.loop import Launcher
from experiments.run.peers import check_can_share
from experiments.run.registry import LAUNCHERS, is_elsewhere
from experiments.train.group import check_can_shard
from experiments.train.models import resolve_device

BYTES_PER_PARAMETER = 16
"""weights, gradients and Adam's moments"""
MOST_ON_A_GPU = 4
"""runs at a time, unless it is said: each takes memory there"""


class Place(NamedTuple):
    """Where runs are trained."""

    device: torch.device
    launcher: Launcher
    workers: int | None
    """runs at a time; None: the launcher knows how many there is room for"""


def place_of(plan: Plan) -> Place:
    """Where the runs of a plan are trained. Raises ValueError if they cannot be, there or in this way."""
    options, count = plan.options, plan.options.nproc
    device, workers = _device(options), options.workers
    if options.shard:
        check_can_shard(device)
    check_can_share(plan.config.batch_size, count)
    elsewhere = is_elsewhere(options.launcher)
    if workers is None and not elsewhere:
        workers = max(1, available_cores() // (plan.config.threads * count))
        workers = min(workers, runs_beside_each_other(plan.root)) if device.type == "cuda" else workers
    needs = parse_needs(
        options.resources, Needs(plan.config.threads * count, count if device.type == "cuda" else 0, nproc=count)
    )
    if device.type == "cpu" and not elsewhere:
        _check_memory(plan, min(workers or 1, plan.seeds * len(plan.variants)))
    return Place(device, LAUNCHERS[options.launcher](workers=workers, needs=needs), workers)


def _check_memory(plan: Plan, at_once: int) -> None:
    """Raises ValueError if so many models at a time cannot be trained in this machine's memory; builds none.

    What counts are the matrices of blocks alone (12·dim² a layer in every variant), which building would take minutes.
    """
    config = max(plan.configs.values(), key=lambda config: config.dim)
    needed = 12 * config.dim**2 * config.layers * BYTES_PER_PARAMETER * at_once
    there = psutil.virtual_memory().total
    if needed > there:
        raise ValueError(
            f"dim {config.dim} with {config.layers} layers, {at_once} at a time, takes at least {needed / 2**30:,.1f} "
            f"GiB, and this machine has {there / 2**30:,.1f}; give a smaller --dim or --layers, or fewer --workers"
        )


def _device(options: RunOptions) -> torch.device:
    """What the runs are trained on: of machines elsewhere what is reserved there, whatever this one has.

    Raises ValueError if it is not there, or another than is reserved.
    """
    if not is_elsewhere(options.launcher):
        return resolve_device(options.device)
    gpus = parse_needs(options.resources, Needs(gpu=math.nan)).gpu
    if options.device == "cpu" and gpus > 0:
        raise ValueError("--resources reserves a GPU, and --device is cpu; leave one of them out")
    if options.device == "cuda" and gpus == 0:
        raise ValueError("--device is cuda, and --resources reserves no GPU; leave gpu=0 out")
    if gpus > 0 or options.device == "cuda":
        return torch.device("cuda")
    return torch.device("cpu") if gpus == 0 else resolve_device(options.device)


def runs_beside_each_other(root: Path) -> int:
    """How many runs a GPU trains at a time unless that is said: as many as its kernels have room for.

    By the smallest ``kernel_share`` on record (beside others a run's kernels seem to take longer), one where there is
    none. It was not measured on a GPU yet whether that many are faster than one.
    """
    if not (root / "comparison.json").exists():
        return 1
    rows = [row.metrics for run in read_comparison(root).runs for row in run_rows(root, *run)]
    shares = [metrics["kernel_share"] for metrics in rows if metrics.get("kernel_share")]
    return max(1, min(MOST_ON_A_GPU, int(1 / min(shares)))) if shares else 1
