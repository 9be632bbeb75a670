"""Runs of any kind of training that are stopped and go on."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.config import Config
from experiments.train.loop import RunStopped, train_run
from experiments.variants import Variant, get_variant
from tests.made_up import repeated_rows


def check_goes_on(directory: Path, make_objective: Callable[[], Any], variant: str | Variant, config: Config) -> None:
    """A run that is stopped twice records what one does that is not; each part has an objective of its own."""
    whole, stopped = directory / "whole", directory / "stopped"

    def train(to: Path, steps: float) -> None:
        done: list[int] = []
        to.mkdir(exist_ok=True)
        train_run(
            *(
                to,
                get_variant(variant) if isinstance(variant, str) else variant,
                0,
                config,
                make_objective(),
                torch.device("cpu"),
            ),
            progress=lambda step, *_: done.append(step),
            should_stop=lambda: len(done) >= steps,
        )

    train(whole, math.inf)
    for steps in (1, 4):
        with pytest.raises(RunStopped):
            train(stopped, steps)
    train(stopped, math.inf)
    assert repeated_rows(stopped / "metrics.jsonl") == repeated_rows(whole / "metrics.jsonl")
