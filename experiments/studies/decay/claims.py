"""What was claimed about attention by distance, and the quantities of the decay experiment that decide it."""

import itertools
from collections.abc import Callable
from math import inf, log
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.claims import BITS_PER_BYTE, Claim, ReadSample, Sample
from experiments.analysis.runs import Runs
from experiments.analysis.samples import from_table
from experiments.records.schema import Comparison
from experiments.studies.decay.tables import (
    BOUND_FAR,
    BOUND_NEAR,
    BOUND_WIDTHS,
    DISTANCES,
    HEAD_DIM,
    KEPT_DISTANCES,
    KEPT_FEATURES,
    MASK_DRAWS,
    SCORE_DRAWS,
    read,
)
from experiments.training.position_loss import bins
from experiments.variants import get_variant

ROFORMER = "RoFormer (2104.09864) section 3.4.3"
BARBERO = "Barbero et al. 2024 (2410.06205)"
BELOW_0 = (-inf, 0.0)
SMALLEST_SCORE = 0.02
"""of a score whose standard deviation or largest value is 1"""
SMALLEST_FALL = 0.1
"""of a natural logarithm: about a tenth of the weight"""
SMALLEST_LOSS = 0.01
"""bits per byte: a sixth of the gap between the Performer and the Transformer on enwik8 (AFT, 2105.14103, table 4)"""

VARIANTS = (
    "softmax-none",
    "softmax-learned",
    "softmax-rope",
    *(
        f"{kernel}-{position}"
        for kernel in ("favor+", "elu+1", "relu")
        for position in ("none", "rope-before", "rope-after")
    ),
)
"""whose trained models are judged"""

NORMAL, HALF_NORMAL = "N(0, 1) inputs", "N(0, 1) inputs times 0.5"
ONE_HEAD = "one head, no training"

Values = dict[int, float]


def over_draws(name: str, quantity: Callable[[pd.DataFrame], Values], planned: int, unit: str = "draws") -> ReadSample:
    """``quantity`` of one of the tables of decay_tables.py that no training is part of."""

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        table = read(root, name)
        return None if table is None else Sample(quantity(table), planned, unit_of_sample=unit)

    return sample


def difference(column: str, far: int, near: int) -> Callable[[pd.DataFrame], Values]:
    """By draw, a column of scores.csv at one distance minus at another."""

    def quantity(scores: pd.DataFrame) -> Values:
        by_draw = scores.pivot(index="draw", columns="distance", values=column)
        if not {far, near} <= set(by_draw):
            return {}
        return _numbers((by_draw[far] - by_draw[near]).dropna())

    return quantity


def largest_over_bound(scores: pd.DataFrame) -> Values:
    """By draw, the largest score over its bound, of all distances."""
    by_draw = scores.pivot(index="draw", columns="distance", values="over_bound")
    return _numbers(by_draw.dropna().max(axis=1)) if set(DISTANCES) <= set(by_draw) else {}


def mask_error(distance: int) -> Callable[[pd.DataFrame], Values]:
    """By draw, the rotated score over the kernel, minus c(Δ)."""

    def quantity(draws: pd.DataFrame) -> Values:
        rows = draws[draws["distance"] == distance].set_index("draw")
        return _numbers(rows["ratio"] - rows["expected"])

    return quantity


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


def over_seeds(name: str, variants: tuple[str, ...], quantity: Callable[..., float | None]) -> ReadSample:
    """``quantity(table, seed, config)`` for each seed at which all these variants finished; None: not measured
    there.
    """

    def read_quantity(root: Path, comparison: Comparison) -> Callable[[int], float | None]:
        table = read(root, name)
        config = comparison.config
        return lambda seed: None if table is None else quantity(table, seed, config)

    return from_table(variants, read_quantity)


def _numbers(values: "pd.Series[float]") -> Values:
    return {int(key): float(value) for key, value in values.items()}  # type: ignore[call-overload]


def _bound_claims() -> list[Claim]:
    return [
        Claim(
            key="bound-holds",
            statement="The bound holds: the largest rotated score of a draw is below it.",
            published=f"{ROFORMER} eq. 37 (proved)",
            quantity=f"largest |Σ h·exp(iΔθ)| over its bound, of all pairs and distances of a draw, D = {HEAD_DIM}",
            region=(-inf, 1.0),
            margin=0.01,
            sample=over_draws("scores", largest_over_bound, SCORE_DRAWS),
            pattern=".3f",
            family="bound",
            data=NORMAL,
            size=ONE_HEAD,
        ),
        Claim(
            key="bound-falls",
            statement=f"The bound falls from distance {BOUND_NEAR} to {BOUND_FAR}.",
            published=f"{ROFORMER}, Fig. 2: read off a plot at d = 128 (31.5 to 6.54 by our calculation)",
            quantity=f"bound at distance {BOUND_FAR} over bound at {BOUND_NEAR}, widths {BOUND_WIDTHS}",
            region=(-inf, 1.0),
            margin=0.05,
            sample=over_draws(
                "bound_widths",
                lambda t: _numbers(t.set_index("width")["far"] / t.set_index("width")["near"]),
                len(BOUND_WIDTHS),
                "widths",
            ),
            pattern=".3f",
            family="bound",
            kind="exact",
            data="no data, a formula",
            size="widths as said, no training",
        ),
    ]


def _score_claims() -> list[Claim]:
    equal = f"score of a key equal to its query over that at distance 0, D = {HEAD_DIM}"
    derived = "none found in print; worked out by us from c(Δ)"
    claims = [
        Claim(
            key="equal-falls",
            statement="The score of equal content falls from distance 1 to 256.",
            published=f'{ROFORMER}: "long-term decay", argued from the bound',
            quantity=f"{equal}: at 256 minus at 1",
            region=BELOW_0,
            margin=SMALLEST_SCORE,
            sample=over_draws("scores", difference("equal", 256, 1), SCORE_DRAWS),
            family="scores",
            data=NORMAL,
            size=ONE_HEAD,
        )
    ]
    claims += [
        Claim(
            key=f"not-monotone-{near}",
            statement=f"The decay is not monotone: equal content scores more at distance {far} than at {near}.",
            published=f"{derived}: {values}",
            quantity=f"{equal}: at {far} minus at {near}",
            region=(0.0, inf),
            margin=SMALLEST_SCORE,
            sample=over_draws("scores", difference("equal", far, near), SCORE_DRAWS),
            family="scores",
            data=NORMAL,
            size=ONE_HEAD,
        )
        for near, far, values in ((128, 256, "0.284 and 0.354"), (512, 1024, "0.185 and 0.263"))
    ]
    claims.append(
        Claim(
            key="gaussian-flat",
            statement="With Gaussian queries and keys there is no decay.",
            published=f"{BARBERO}: for independent Gaussian q and k the expected score is 0 at all distances",
            quantity=f"mean score qᵀR_Δk/√D at 256 minus at 0, independent N(0, 1), D = {HEAD_DIM}",
            region=(-0.05, 0.05),
            margin=SMALLEST_SCORE,
            sample=over_draws("scores", difference("gaussian", 256, 0), SCORE_DRAWS),
            family="scores",
            data=NORMAL,
            size=ONE_HEAD,
        )
    )
    return claims


def _mask_claims() -> list[Claim]:
    return [
        Claim(
            key=f"mask-{distance}",
            statement=f"With FAVOR+, RoPE after the map is in expectation the mask c(Δ): at distance {distance}.",
            published="none found; worked out by us from the exchangeability of random features",
            quantity=f"rotated score over the softmax kernel, minus c({distance}), M = {KEPT_FEATURES}",
            region=(-SMALLEST_SCORE, SMALLEST_SCORE),
            margin=SMALLEST_SCORE / 4,
            sample=over_draws("mask_draws", mask_error(distance), MASK_DRAWS),
            family="mask",
            data=HALF_NORMAL,
            size=ONE_HEAD,
        )
        for distance in KEPT_DISTANCES
    ]


def _attention_claims() -> list[Claim]:
    what = "ln(mean absolute weight at distances of 1/4 to 1/2 of the context / at 1 to 1/32 of it), mean over layers"
    claims = []
    for name in VARIANTS:
        variant = get_variant(name)
        if not variant.position.startswith("rope"):
            continue
        claims += [
            Claim(
                key=f"{name}-attention",
                statement=f"In trained models attention falls with distance: {name}.",
                published=f"none found measured on trained models; {ROFORMER} argues it from the bound",
                quantity=what,
                region=BELOW_0,
                margin=SMALLEST_FALL,
                sample=over_seeds(
                    "attention",
                    (name,),
                    lambda table, seed, config, name=name: fall(table, name, seed, config),
                ),
                family="attention",
            ),
            Claim(
                key=f"{name}-steeper",
                statement=f"With RoPE, attention falls more steeply than without positions: {name}.",
                published=f"none found measured; {ROFORMER} gives decay as a reason for RoPE",
                quantity=f"{what}: {name} minus {variant.baseline}",
                region=BELOW_0,
                margin=SMALLEST_FALL,
                sample=over_seeds("attention", (name, variant.baseline), _steeper(name, variant.baseline)),
                family="attention",
            ),
        ]
    return claims


def _steeper(variant: str, baseline: str) -> Callable[..., float | None]:
    def quantity(table: pd.DataFrame, seed: int, config: dict[str, Any]) -> float | None:
        mine, other = (fall(table, each, seed, config) for each in (variant, baseline))
        return None if mine is None or other is None else mine - other

    return quantity


def _loss_claims() -> list[Claim]:
    return [
        Claim(
            key=f"{variant}-position-loss",
            statement=f"The loss goes on falling with the position in the context: {variant}.",
            published="none found",
            quantity="test loss in the last half of the context minus that in the quarter before it, bits per byte",
            region=BELOW_0,
            margin=SMALLEST_LOSS,
            sample=over_seeds("position_loss", (variant,), _last_step(variant)),
            family="loss by position",
            resolution=BITS_PER_BYTE,
        )
        for variant in VARIANTS
    ]


def _last_step(variant: str) -> Callable[..., float | None]:
    def quantity(table: pd.DataFrame, seed: int, config: dict[str, Any]) -> float | None:
        rows = table[(table["variant"] == variant) & (table["seed"] == seed)].sort_values("first")
        measured = list(zip(rows["first"], rows["last"], strict=True))
        losses = rows["bits_per_byte"].tolist()
        return losses[-1] - losses[-2] if len(losses) > 1 and measured == bins(config["context"]) else None

    return quantity


CLAIMS: tuple[Claim, ...] = (
    *_bound_claims(),
    *_score_claims(),
    *_mask_claims(),
    *_attention_claims(),
    *_loss_claims(),
)
