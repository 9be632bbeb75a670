"""The quantities of the decay study that its claims are about."""

import itertools
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.runs import Runs
from experiments.analysis.samples import ReadSample, Sample, from_table
from experiments.records.schema import Comparison
from experiments.studies.decay.measure import (
    BOUND_FAR,
    BOUND_NEAR,
    BOUND_WIDTHS,
    DISTANCES,
    HEAD_DIM,
    KEPT_FEATURES,
    MASK_DRAWS,
    SCORE_DRAWS,
    read,
)
from experiments.training.position_loss import bins

__all__ = ["BOUND_FAR", "BOUND_NEAR", "HEAD_DIM", "KEPT_FEATURES"]

SMALLEST_SCORE = 0.02
"""of a score whose standard deviation or largest value is 1"""

Values = dict[int, float]


def largest_over_bound() -> ReadSample:
    """By draw, the largest score over its bound, of all distances."""

    def quantity(scores: pd.DataFrame) -> Values:
        by_draw = scores.pivot(index="draw", columns="distance", values="over_bound")
        return _numbers(by_draw.dropna().max(axis=1)) if set(DISTANCES) <= set(by_draw) else {}

    return _over_draws("scores", quantity, SCORE_DRAWS)


def bound_falls() -> ReadSample:
    """By width, the bound far from the query over that near it."""

    def quantity(bounds: pd.DataFrame) -> Values:
        by_width = bounds.set_index("width")
        return _numbers(by_width["far"] / by_width["near"])

    return _over_draws("bound_widths", quantity, len(BOUND_WIDTHS), "widths")


def score_difference(column: str, far: int, near: int) -> ReadSample:
    """By draw, a column of scores.csv at one distance minus at another."""

    def quantity(scores: pd.DataFrame) -> Values:
        by_draw = scores.pivot(index="draw", columns="distance", values=column)
        return _numbers((by_draw[far] - by_draw[near]).dropna()) if {far, near} <= set(by_draw) else {}

    return _over_draws("scores", quantity, SCORE_DRAWS)


def mask_error(distance: int) -> ReadSample:
    """By draw, the rotated score over the kernel, minus c(Δ)."""

    def quantity(draws: pd.DataFrame) -> Values:
        rows = draws[draws["distance"] == distance].set_index("draw")
        return _numbers(rows["ratio"] - rows["expected"])

    return _over_draws("mask_draws", quantity, MASK_DRAWS)


def fall_of_attention(variant: str) -> ReadSample:
    """By seed, ``fall`` of a variant."""
    return _over_seeds("attention", (variant,), lambda *place: fall(place[0], variant, *place[1:]))


def steeper(variant: str, other: str) -> ReadSample:
    """By seed, ``fall`` of a variant minus that of another."""

    def quantity(table: pd.DataFrame, seed: int, config: dict[str, Any]) -> float | None:
        mine, theirs = (fall(table, each, seed, config) for each in (variant, other))
        return None if mine is None or theirs is None else mine - theirs

    return _over_seeds("attention", (variant, other), quantity)


def last_step(variant: str) -> ReadSample:
    """By seed, the loss in the last range of positions minus that in the range before."""

    def quantity(table: pd.DataFrame, seed: int, config: dict[str, Any]) -> float | None:
        rows = table[(table["variant"] == variant) & (table["seed"] == seed)].sort_values("first")
        measured = list(zip(rows["first"], rows["last"], strict=True))
        losses = rows["bits_per_byte"].tolist()
        return losses[-1] - losses[-2] if len(losses) > 1 and measured == bins(config["context"]) else None

    return _over_seeds("position_loss", (variant,), quantity)


def fall(attention: pd.DataFrame, variant: str, seed: int, config: dict[str, Any]) -> float | None:
    """ln of the mean absolute weight far from the query over that near it, mean over layers.

    Near: distances 1 to a 32nd of the context. Far: a quarter of it to a half, the largest that are measured. None
    where a layer or a distance is missing, or the mean weight is 0.
    """
    rows = attention[(attention["variant"] == variant) & (attention["seed"] == seed)]
    by_place = rows.set_index(["layer", "distance"])["absolute"]
    context = config["context"]
    means = []
    for distances in (range(1, max(1, context // 32) + 1), range(context // 4, context // 2)):
        places = list(itertools.product(range(config["layers"]), distances))
        if not set(places) <= set(by_place.index):
            return None
        means.append(by_place[places].mean())
    near, far = means
    return log(far) - log(near) if near > 0 and far > 0 else None


def _over_draws(name: str, quantity: Callable[[pd.DataFrame], Values], planned: int, unit: str = "draws") -> ReadSample:
    """``quantity`` of one of the tables that no training is part of."""

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        table = read(root, name)
        return None if table is None else Sample(quantity(table), planned, unit_of_sample=unit)

    return sample


def _over_seeds(name: str, variants: tuple[str, ...], quantity: Callable[..., float | None]) -> ReadSample:
    """``quantity(table, seed, config)`` for each seed at which all these variants finished; None: not measured."""

    def read_quantity(root: Path, comparison: Comparison) -> Callable[[int], float | None]:
        table = read(root, name)
        return lambda seed: None if table is None else quantity(table, seed, comparison.config)

    return from_table(variants, read_quantity)


def _numbers(values: "pd.Series[float]") -> Values:
    return {int(key): float(value) for key, value in values.items()}  # type: ignore[call-overload]
