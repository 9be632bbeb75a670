"""What was claimed about random features, and the quantities of the features experiment that decide it."""

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis.claims import Claim, ReadSample, Sample
from experiments.analysis.runs import Runs
from experiments.analysis.samples import from_table
from experiments.records.schema import Comparison
from experiments.studies.features import tables as features_tables

Made = tuple[str, str]
"""an estimator and its kind of directions"""

ORTHOGONAL, INDEPENDENT = ("positive", "orthogonal"), ("positive", "independent")
HYPERBOLIC, TRIGONOMETRIC = ("hyperbolic", "orthogonal"), ("trigonometric", "orthogonal")

MARGIN = 0.02
"""of a decimal logarithm: 5 per cent"""

TYPICAL = "typical error (geometric mean over draws), neither a variance nor a mean squared error"
"""what a mean of logarithms tells of: rare draws that are far off, which dominate a mean squared error, count little"""

PERFORMER = "Choromanski et al. 2020, arXiv 2009.14794"


def ratio_over_draws(part: features_tables.Part, one: Made, other: Made, column: str, **wanted: float) -> ReadSample:
    """log10 of the first estimator's error over the second's, for each draw of random inputs."""

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        table = features_tables.read_table(root, "random")
        if table is None:
            return None
        first, second = (np.log10(_of_part(table, part, wanted, made)[column]) for made in (one, other))
        values = {int(number): float(first[number] - second[number]) for number in first.index if number in second}
        return Sample(values, features_tables.planned_draws(comparison, part), unit_of_sample="draws")

    return sample


def saving_over_draws(part: features_tables.Part, one: Made, other: Made, **wanted: float) -> ReadSample:
    """The first estimator's squared error minus the second's, over that expected of independent directions, by draw.

    The mean over draws is a difference of mean squared errors.
    """

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        table = features_tables.read_table(root, "random")
        if table is None:
            return None
        first, second = (_of_part(table, part, wanted, made) for made in (one, other))
        saved = ((first["kernel_error"] - second["kernel_error"]) / second["expected_kernel_error"]).dropna()
        values = {int(number): float(saved[number]) for number in saved.index}
        return Sample(values, features_tables.planned_draws(comparison, part), unit_of_sample="draws")

    return sample


def _of_part(table: pd.DataFrame, part: str, wanted: dict[str, float], made: Made) -> pd.DataFrame:
    """The rows of an estimator in a part of random.csv, by draw."""
    conditions = [table["part"] == part, _made(table, made), *(table[name] == value for name, value in wanted.items())]
    return table[np.logical_and.reduce(conditions)].set_index("draw")


def slope_over_draws(*, head_dim: int, scale: float) -> ReadSample:
    """The slope of log error over log M for independent positive features, for each draw."""

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        table = features_tables.read_table(root, "random")
        if table is None:
            return None
        rows = table[(table["part"] == "curves") & (table["head_dim"] == head_dim) & (table["scale"] == scale)]
        rows = rows[(rows["estimator"] == "positive") & (rows["directions"] == "independent")]
        values = {}
        by_draw: Any = rows.groupby("draw")
        for number, of_draw in by_draw:
            if set(of_draw["num_features"]) == set(features_tables.NUM_FEATURES):
                x, y = np.log(of_draw["num_features"]), np.log(of_draw["kernel_error"])
                values[int(number)] = float(np.polyfit(x, y, 1)[0])
        return Sample(values, features_tables.planned_draws(comparison, "curves"), unit_of_sample="draws")

    return sample


def ratio_over_seeds(variant: str, one: Made, other: Made, column: str, num_features: int) -> ReadSample:
    """log10 of the first estimator's error over the second's on a trained variant, mean over its layers, for each
    seed.
    """

    def read(root: Path, comparison: Comparison) -> Callable[[int], float | None]:
        table = features_tables.read_table(root, "trained")
        if table is None:
            return lambda seed: None
        rows = table[(table["variant"] == variant) & (table["num_features"] == num_features)]

        def mean_over_layers(seed: int) -> float | None:
            of_seed = rows[rows["seed"] == seed]
            first, second = (of_seed[_made(of_seed, made)].set_index("layer")[column] for made in (one, other))
            difference = (first - second).dropna()
            return float(difference.mean()) if len(difference) == comparison.config["layers"] else None

        return mean_over_layers

    return from_table((variant,), read)


def _made(rows: pd.DataFrame, made: Made) -> "pd.Series[bool]":
    return (rows["estimator"] == made[0]) & (rows["directions"] == made[1])


def _random_claims() -> list[Claim]:
    claims = []
    for scale in (0.25, 0.5):
        claims.append(
            Claim(
                key=f"orthogonal-{scale:g}",
                statement="Orthogonal random directions lower the typical error of the kernel, M = d = 16, at scale "
                f"{scale:g}.",
                published=f"none found of the typical error; mean squared error lower for M ≤ d ({PERFORMER})",
                quantity=f"log10(error orthogonal / error independent), positive features, d = M = 16; {TYPICAL}",
                region=(-inf, 0),
                margin=MARGIN,
                sample=ratio_over_draws(
                    "few features", ORTHOGONAL, INDEPENDENT, "kernel_error", head_dim=16, scale=scale, num_features=16
                ),
                family="features",
                data=_inputs(scale),
                size=_size(),
            )
        )
        claims.append(
            Claim(
                key=f"orthogonal-mean-{scale:g}",
                statement="Orthogonal random directions lower the mean squared error of the kernel, M = d = 16, at "
                f"scale {scale:g}.",
                published=f"proved for M ≤ d ({PERFORMER}); judged here when this run had been seen",
                quantity="mean squared error, orthogonal minus independent, over what is expected of independent "
                "directions; positive features, d = M = 16",
                region=(-inf, 0),
                margin=0.02,
                sample=saving_over_draws(
                    "few features", ORTHOGONAL, INDEPENDENT, head_dim=16, scale=scale, num_features=16
                ),
                pattern="+.1%",
                family="seen",
                data=_inputs(scale),
                size=_size(),
            )
        )
    claims.append(
        Claim(
            key="positive-1",
            statement="Positive features estimate attention better than sines and cosines, at scale 1.",
            published=f"lower error of the output, L = 4096, d = 16 ({PERFORMER}, figure 4); scale 1 is ours",
            quantity=f"log10(output error positive / output error trigonometric), d = 16, M = 256; {TYPICAL}",
            region=(-inf, 0),
            margin=MARGIN,
            sample=_figure_4(ORTHOGONAL, TRIGONOMETRIC, 1.0),
            family="features",
            data=_inputs(1.0),
            size=_size(features_tables.PUBLISHED_LENGTH),
        )
    )
    claims.append(
        Claim(
            key="trigonometric-0.5",
            statement="Sines and cosines estimate attention better than positive features, at scale 0.5.",
            published="none found; worked out by us: output error 1e-5 against 2.7e-5",
            quantity=f"log10(output error trigonometric / output error positive), d = 16, M = 256; {TYPICAL}",
            region=(-inf, 0),
            margin=MARGIN,
            sample=_figure_4(TRIGONOMETRIC, ORTHOGONAL, 0.5),
            family="features",
            data=_inputs(0.5),
            size=_size(features_tables.PUBLISHED_LENGTH),
        )
    )
    for scale in features_tables.SCALES:
        claims.append(
            Claim(
                key=f"hyperbolic-{scale:g}",
                statement=f"Hyperbolic features lower the error of the kernel at equal M, at scale {scale:g}.",
                published="none found of the typical error; lower mean squared error for equal numbers of draws "
                f"({PERFORMER})",
                quantity=f"log10(error hyperbolic / error positive), both orthogonal, d = 16, M = 256; {TYPICAL}",
                region=(-inf, 0),
                margin=MARGIN,
                sample=ratio_over_draws(
                    "curves", HYPERBOLIC, ORTHOGONAL, "kernel_error", head_dim=16, scale=scale, num_features=256
                ),
                family="features",
                data=_inputs(scale),
                size=_size(),
            )
        )
    claims.append(
        Claim(
            key="one-over-m",
            statement="The error of the kernel falls as 1/M.",
            published="none found of the typical error; mean squared error proportional to 1/M for independent "
            f"directions ({PERFORMER})",
            quantity=f"slope of log(error) over log(M), M = 16 to 1024, independent, d = 16; {TYPICAL}",
            region=(-1.1, -0.9),
            margin=0.02,
            sample=slope_over_draws(head_dim=16, scale=0.25),
            family="features",
            data=_inputs(0.25),
            size=_size(),
        )
    )
    return claims


def _inputs(scale: float) -> str:
    return "N(0, 1) inputs" if scale == 1 else f"N(0, 1) inputs times {scale:g}"


def _size(length: int = features_tables.LENGTH) -> str:
    return f"one head, length {length:,}, no training"


def _figure_4(one: Made, other: Made, scale: float) -> ReadSample:
    return ratio_over_draws("figure 4", one, other, "output_error", head_dim=16, scale=scale, num_features=256)


def _trained_claims() -> list[Claim]:
    contrasts = (
        ("orthogonal", "Orthogonal directions are better than independent ones", ORTHOGONAL, INDEPENDENT, "theory"),
        ("positive", "Positive features are better than sines and cosines", ORTHOGONAL, TRIGONOMETRIC, "figure 4"),
        ("hyperbolic", "Hyperbolic features are better than plain positive ones", HYPERBOLIC, ORTHOGONAL, "theory"),
    )
    return [
        Claim(
            key=f"{key}-on-{variant}",
            statement=f"{statement} on the queries and keys of a trained {variant}.",
            published=f"none found for trained models; for random or bounded inputs {PERFORMER}, {where}",
            quantity=f"log10 of the ratio of the errors of the attention matrix, M = 64, mean over layers; {TYPICAL}",
            region=(-inf, 0),
            margin=MARGIN,
            sample=ratio_over_seeds(variant, one, other, "log10_attention_error", 64),
            family="features on trained models",
        )
        for variant in features_tables.VARIANTS
        for key, statement, one, other, where in contrasts
    ]


CLAIMS: tuple[Claim, ...] = (*_random_claims(), *_trained_claims())
