"""The quantities of the decay study that its claims are about."""

import itertools
from math import log
from typing import Any

import pandas as pd

from experiments.analysis.samples import ReadSample
from experiments.records.schema import Comparison
from experiments.studies.decay.measure import (
    ATTENTION,
    BOUND_BY_WIDTH,
    BOUND_FAR,
    BOUND_NEAR,
    BOUND_WIDTHS,
    DISTANCES,
    HEAD_DIM,
    KEPT_FEATURES,
    KEPT_MASK,
    MASK_DRAWS,
    POSITION_LOSS,
    SCORE_DRAWS,
    SCORES,
)
from experiments.training.position_loss import bins

__all__ = ["BOUND_FAR", "BOUND_NEAR", "HEAD_DIM", "KEPT_FEATURES"]

SMALLEST_SCORE = 0.02
"""of a score whose standard deviation or largest value is 1"""


def largest_over_bound() -> ReadSample:
    """By draw, the largest score over its bound, of all distances."""

    def quantity(scores: pd.DataFrame) -> Any:
        by_draw = scores.pivot(index="draw", columns="distance", values="over_bound")
        return by_draw.dropna().max(axis=1) if set(DISTANCES) <= set(by_draw) else {}

    return SCORES.over_draws(quantity, SCORE_DRAWS)


def bound_falls() -> ReadSample:
    """By width, the bound far from the query over that near it."""

    def quantity(bounds: pd.DataFrame) -> Any:
        by_width = bounds.set_index("width")
        return by_width["far"] / by_width["near"]

    return BOUND_BY_WIDTH.over_draws(quantity, len(BOUND_WIDTHS), "widths")


def score_difference(column: str, far: int, near: int) -> ReadSample:
    """By draw, a column of scores.csv at one distance minus at another."""

    def quantity(scores: pd.DataFrame) -> Any:
        by_draw = scores.pivot(index="draw", columns="distance", values=column)
        return (by_draw[far] - by_draw[near]).dropna() if {far, near} <= set(by_draw) else {}

    return SCORES.over_draws(quantity, SCORE_DRAWS)


def mask_error(distance: int) -> ReadSample:
    """By draw, the rotated score over the kernel, minus c(Δ)."""

    def quantity(draws: pd.DataFrame) -> Any:
        rows = draws[draws["distance"] == distance].set_index("draw")
        return rows["ratio"] - rows["expected"]

    return KEPT_MASK.over_draws(quantity, MASK_DRAWS)


def fall_of_attention(variant: str) -> ReadSample:
    """By seed, ``fall`` of a variant."""
    return ATTENTION.over_seeds((variant,), lambda rows, comparison: fall(rows, variant, comparison))


def steeper(variant: str, other: str) -> ReadSample:
    """By seed, ``fall`` of a variant minus that of another."""

    def quantity(rows: pd.DataFrame, comparison: Comparison) -> float | None:
        mine, theirs = (fall(rows, each, comparison) for each in (variant, other))
        return None if mine is None or theirs is None else mine - theirs

    return ATTENTION.over_seeds((variant, other), quantity)


def last_step(variant: str) -> ReadSample:
    """By seed, the loss in the last range of positions minus that in the range before."""

    def quantity(rows: pd.DataFrame, comparison: Comparison) -> float | None:
        rows = rows[rows["variant"] == variant].sort_values("first")
        measured = list(zip(rows["first"], rows["last"], strict=True))
        losses = rows["bits_per_byte"].tolist()
        is_whole = len(losses) > 1 and measured == bins(comparison.config["context"])
        return losses[-1] - losses[-2] if is_whole else None

    return POSITION_LOSS.over_seeds((variant,), quantity)


def fall(of_seed: pd.DataFrame, variant: str, comparison: Comparison) -> float | None:
    """ln of the mean absolute weight far from the query over that near it, mean over layers.

    Near: distances 1 to a 32nd of the context. Far: a quarter of it to a half, the largest that are measured. None
    where a layer or a distance is missing, or the mean weight is 0.
    """
    by_place = of_seed[of_seed["variant"] == variant].set_index(["layer", "distance"])["absolute"]
    context = comparison.config["context"]
    means = []
    for distances in (range(1, max(1, context // 32) + 1), range(context // 4, context // 2)):
        places = list(itertools.product(range(comparison.config["layers"]), distances))
        if not set(places) <= set(by_place.index):
            return None
        means.append(by_place[places].mean())
    near, far = means
    return log(far) - log(near) if near > 0 and far > 0 else None
