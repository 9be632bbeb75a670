"""The quantities of the features study that its claims are about; the estimators are ``"<estimator> <directions>"``."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis.samples import ReadSample
from experiments.records.schema import Comparison
from experiments.studies.features.measure import (
    LENGTH,
    NUM_FEATURES,
    PUBLISHED_LENGTH,
    RANDOM,
    TRAINED,
    Part,
    planned_draws,
)

__all__ = ["LENGTH", "PUBLISHED_LENGTH"]

MARGIN = 0.02
"""of a decimal logarithm: 5 per cent"""


def ratio_over_draws(
    part: Part, one: str, other: str, column: str, head_dim: int, scale: float, num_features: int
) -> ReadSample:
    """log10 of the first estimator's error over the second's, for each draw of random inputs."""

    def quantity(table: pd.DataFrame) -> "pd.Series[float]":
        first, second = (np.log10(_made(table, each)[column]) for each in (one, other))
        both = first.index.intersection(second.index)
        return first[both] - second[both]

    return _over_draws(part, {"head_dim": head_dim, "scale": scale, "num_features": num_features}, quantity)


def saving_over_draws(part: Part, one: str, other: str, head_dim: int, scale: float, num_features: int) -> ReadSample:
    """The first estimator's squared error minus the second's, over that expected of independent directions, by draw.

    The mean over draws is a difference of mean squared errors.
    """

    def quantity(table: pd.DataFrame) -> "pd.Series[float]":
        first, second = (_made(table, each) for each in (one, other))
        return ((first["kernel_error"] - second["kernel_error"]) / second["expected_kernel_error"]).dropna()

    return _over_draws(part, {"head_dim": head_dim, "scale": scale, "num_features": num_features}, quantity)


def slope_over_draws(head_dim: int, scale: float) -> ReadSample:
    """The slope of log error over log M for independent positive features, for each draw."""

    def quantity(table: pd.DataFrame) -> "pd.Series[float]":
        slopes = {}
        by_draw: Any = _made(table, "positive independent").groupby("draw")
        for number, of_draw in by_draw:
            if set(of_draw["num_features"]) == set(NUM_FEATURES):
                x, y = np.log(of_draw["num_features"]), np.log(of_draw["kernel_error"])
                slopes[number] = float(np.polyfit(x, y, 1)[0])
        return pd.Series(slopes, dtype=float)

    return _over_draws("curves", {"head_dim": head_dim, "scale": scale}, quantity)


def ratio_over_seeds(variant: str, one: str, other: str, num_features: int) -> ReadSample:
    """log10 of the first estimator's error of the attention matrix over the second's, on a trained variant.

    The mean over its layers, for each seed.
    """

    def quantity(rows: pd.DataFrame, comparison: Comparison) -> float | None:
        rows = rows[(rows["variant"] == variant) & (rows["num_features"] == num_features)]
        first, second = (_made(rows, each, "layer")["log10_attention_error"] for each in (one, other))
        difference = (first - second).dropna()
        return float(difference.mean()) if len(difference) == comparison.config["layers"] else None

    return TRAINED.over_seeds((variant,), quantity)


def _over_draws(
    part: Part, wanted: dict[str, float], quantity: Callable[[pd.DataFrame], "pd.Series[float]"]
) -> ReadSample:
    """``quantity`` by draw of the wanted rows of a part of random.csv."""

    def of_rows(table: pd.DataFrame) -> "pd.Series[float]":
        rows = [table["part"] == part, *(table[column] == value for column, value in wanted.items())]
        return quantity(table[np.logical_and.reduce(rows)])

    return RANDOM.over_draws(of_rows, lambda comparison: planned_draws(comparison, part))


def _made(rows: pd.DataFrame, made: str, index: str = "draw") -> pd.DataFrame:
    """The rows of an estimator."""
    estimator, directions = made.split()
    return rows[(rows["estimator"] == estimator) & (rows["directions"] == directions)].set_index(index)
