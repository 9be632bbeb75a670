"""What the positions study measures of trained models: longer windows, and the time of a training step."""

from functools import partial
from pathlib import Path

import pandas as pd
import torch

from experiments.config import Config
from experiments.console import counted
from experiments.records.csv_files import TEXT, number, whole
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.studies.length.measure import AS_TRAINED, LOSSES, measure_lengths, window_means
from experiments.studies.length.measure import loss as loss
from experiments.studies.speed.benchmark import time_in_turn
from experiments.studies.tables import Table
from experiments.train.evaluate import on_device
from experiments.train.models import build_model
from experiments.train.objectives import NextToken
from experiments.train.optimizers import make_optimizer
from experiments.train.steps import Steps
from experiments.train.trained_models import measuring_device
from experiments.variants import get_variant

LONGEST = 4
"""times the training length"""
LONGEST_WINDOWS = 64
"""of that length; shorter windows are cut from them"""
ROUNDS = 15
SECONDS = 0.1
"""that a sample takes at least"""

COST = Table("cost", {"variant": TEXT, "round": whole(0, 2**30)}, {"seconds": number(0)})


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write length.csv and cost.csv; returns sentences about what could not be measured."""
    notes = measure_lengths(root, comparison, objective, [1, 2, LONGEST], LONGEST_WINDOWS)
    return notes + measure_cost(root, comparison, objective)


def measure_cost(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write cost.csv: the time of a training step of every variant, in rounds that have each of them once.

    Where there is one of all of them it stays: a quiet machine may have made it.
    """
    before = COST.read(root)
    if before is not None and {each.name for each in comparison.variants} <= {*before["variant"]}:
        return []
    config, device = Config(**comparison.config), measuring_device(comparison)
    batch = on_device(objective.batch(0, 0), device)
    calls = {}
    for each in counted(comparison.variants, "the time of a step: models"):
        own = Config(**{**comparison.config, **each.settings, "compile": "no"})
        model = build_model(get_variant(each.name), own, 0, objective).to(device)
        steps = Steps(model, make_optimizer(model, own), objective, own)
        calls[each.name] = partial(steps.make, 0, batch)
    seconds, failures = time_in_turn(
        calls, threads=config.threads, sample_seconds=SECONDS, rounds=ROUNDS, fewest_rounds=ROUNDS, budget=0.0
    )
    torch.set_num_threads(config.threads)
    COST.write(
        root,
        *(
            pd.DataFrame({"variant": name, "round": range(len(values)), "seconds": values})
            for name, values in seconds.items()
            if values
        ),
    )
    return [f"the time of a step leaves out {name}: {reason}" for name, reason in failures.items()]


step_time = COST.samples("round", ROUNDS, "rounds")


def costs(root: Path) -> pd.DataFrame | None:
    """By variant and round (as a seed) the time of a step over that of its kernel without positions, less 1."""
    measured = COST.read(root)
    if measured is None:
        return None
    times = measured.pivot(index="round", columns="variant", values="seconds")
    without = {each.name: f"{each.kernel}-none" for each in read_comparison(root).variants}
    pairs = {name: base for name, base in without.items() if {name, base} <= {*times} and name != base}
    ratios = pd.DataFrame({name: times[name] / times[base] - 1 for name, base in pairs.items()})
    long = ratios.rename_axis("seed").reset_index().melt("seed", var_name="variant")
    return long.dropna(subset="value")


def rises(root: Path) -> pd.DataFrame | None:
    """By variant and seed the loss in the longest windows minus that in windows of the training length."""
    measured = LOSSES.read(root)
    if measured is None:
        return None
    means = window_means(measured[measured["method"] == AS_TRAINED])
    wide = means.pivot(index=["variant", "seed"], columns="length", values="bits_per_byte")
    short = wide.columns.min()
    if LONGEST * short not in wide:
        return None
    return (wide[LONGEST * short] - wide[short]).dropna().rename("value").reset_index()
