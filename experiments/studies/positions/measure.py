"""What the positions study measures of trained models: longer windows, and the time of a training step."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd

from experiments.config import Config
from experiments.records.csv_files import NotMeasured
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.studies.length.measure import AS_TRAINED, by_length, measure_lengths
from experiments.studies.length.measure import loss as loss
from experiments.studies.tables import Table
from experiments.train.evaluate import on_device
from experiments.train.objectives import NextToken
from experiments.train.optimizers import make_optimizer
from experiments.train.steps import Steps
from experiments.train.trained_models import measuring_device, untrained_model
from experiments.variants import get_variant

LONGEST = 4
"""times the training length"""
LONGEST_WINDOWS = 64
"""of that length; shorter windows are cut from them"""
ROUNDS = 15
SECONDS = 0.1
"""that a sample takes at least"""

COST = Table("cost", {"variant": str, "round": int}, {"seconds": float})


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write length.csv and cost.csv; returns sentences about what could not be measured."""
    notes = measure_lengths(root, comparison, objective, [1, 2, LONGEST], LONGEST_WINDOWS)
    return notes + measure_cost(root, comparison, objective)


def measure_cost(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write cost.csv: the time of a training step of every variant, in rounds that have each of them once."""
    device = measuring_device(comparison)
    batch = on_device(objective.batch(0, 0), device)

    def step(name: str) -> Callable[[], object]:
        config = get_variant(name).config(Config.of(comparison.config | {"compile": "no"}))
        model = untrained_model(comparison, name, 0, objective).to(device)
        return partial(Steps(model, make_optimizer(model, config), objective, config).make, 0, batch)

    names, threads = [variant.name for variant in comparison.variants], comparison.config["threads"]
    limits = {"threads": threads, "rounds": ROUNDS, "sample_seconds": SECONDS}
    return COST.time(root, names, "the time of a step", step, **limits)


step_time = COST.samples("round", ROUNDS, "rounds")


def costs(root: Path) -> pd.DataFrame:
    """By variant and round (as a seed) the time of a step over that of its kernel without positions, less 1."""
    times = COST.read(root).pivot(index="round", columns="variant", values="seconds")
    without = {each.name: f"{each.kernel}-none" for each in read_comparison(root).variants}
    pairs = {name: base for name, base in without.items() if {name, base} <= {*times} and name != base}
    ratios = pd.DataFrame({name: times[name] / times[base] - 1 for name, base in pairs.items()})
    return ratios.rename_axis("seed").reset_index().melt("seed", var_name="variant").dropna(subset="value")


def rises(root: Path) -> pd.DataFrame:
    """By variant and seed the loss in the longest windows minus that in windows of the training length."""
    means = by_length(root)
    wide = means[means["method"] == AS_TRAINED].pivot(index=["variant", "seed"], columns="length", values="value")
    short = wide.columns.min()
    if LONGEST * short not in wide:
        raise NotMeasured("the longest windows")
    return (wide[LONGEST * short] - wide[short]).dropna().rename("value").reset_index()
