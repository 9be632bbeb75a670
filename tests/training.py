"""Runs of any kind of training, and runs that are stopped and go on."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.config import Config
from experiments.train.group import Group
from experiments.train.loop import RunLog, RunStopped, Trainer
from experiments.variants import Variant, get_variant
from tests.made_up import repeated_rows

CPU = torch.device("cpu")


def train_run(
    directory: Path,
    variant: str | Variant,
    seed: int,
    config: Config,
    objective: Any,
    device: torch.device = CPU,
    group: Group | None = None,
    **log: Callable[..., Any],
) -> None:
    """Train a run, in a directory that is made; ``log`` are methods of its RunLog."""
    directory.mkdir(exist_ok=True)
    variant = get_variant(variant) if isinstance(variant, str) else variant
    told = RunLog()
    vars(told).update(log)
    Trainer(directory, variant, seed, config, objective, told, group or Group(device)).fit()


def train_until(steps: float, *run: Any, **log: Callable[..., Any]) -> None:
    """The same, stopped after so many steps of this call, if it has as many."""
    done: list[int] = []
    told = {"progress": lambda step, *_: done.append(step), "should_stop": lambda: len(done) >= steps}
    if steps == math.inf:
        train_run(*run, **told | log)
    else:
        with pytest.raises(RunStopped):
            train_run(*run, **told | log)


def check_goes_on(directory: Path, make_objective: Callable[[], Any], variant: str | Variant, config: Config) -> None:
    """A run that is stopped twice records what one does that is not; each part has an objective of its own."""
    whole, stopped = directory / "whole", directory / "stopped"
    train_until(math.inf, whole, variant, 0, config, make_objective())
    for steps in (1, 4, math.inf):
        train_until(steps, stopped, variant, 0, config, make_objective())
    assert repeated_rows(stopped / "metrics.jsonl") == repeated_rows(whole / "metrics.jsonl")
