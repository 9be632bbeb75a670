"""The variance of the rotated FAVOR+ score: features as they are drawn, and each used as both members of a pair.

With the table that the pairing study makes of it, and what claims compare.

RoPE after the map rotates features 2i and 2i + 1 as a pair by the angle Δθ_i of their distance. The score is then

    Σ_i (f_2i g_2i + f_2i+1 g_2i+1)·cos Δθ_i + (f_2i g_2i+1 − f_2i+1 g_2i)·sin Δθ_i   up to the sign of the sine

with f and g the features of query and key. Plain features of a pair come from different draws: their sine terms are
zero in the mean and add variance. Paired features are equal, f_2i = f_2i+1, the sine terms cancel, and the score is
Σ_p f_p g_p·2cos Δθ_p: M features from M/2 draws.

Over independent draws the score divided by the kernel has for both maps the mean c(Δ) = (2/M)·Σ cos Δθ_i. With x and y
the scaled query and key, A = exp(|x + y|²) − 1 the variance of a single f g (in units of its mean), and
B = exp(|x − y|²) − 1 half that of a sine term (its two products have the second moment exp(|x|² + |y|²) / kernel² =
exp(|x − y|²), their mean product is 1, and by symmetry they are uncorrelated with the cosine terms):

    plain:   (2/M²)·Σ_i (A·cos² Δθ_i + B·sin² Δθ_i)        i < M/2
    paired:  (4/M²)·Σ_i  A·cos² Δθ_i                       i < M/2

So at equal M pairing wins where A·cos² < B·sin² in the mean over the frequencies: never at distance 0, where it has
twice the variance, and where the frequencies have turned (cos² and sin² about ½) only if B > A, that is qᵀk < 0. At
equal draws (paired with 2M features) it removes the sine term and leaves about the cosine term of the plain map.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from experiments.records.schema import Comparison
from experiments.studies.features.kernel_errors import DIRECTIONS, Directions
from experiments.studies.tables import Table
from experiments.train.objectives import NextToken
from linear_rope import FavorPlus, apply_rope
from linear_rope.diagnostics import expected_rope_mask
from linear_rope.features import Features
from linear_rope.positions.rotary import rope_frequencies

DISTANCES = (0, 1, 8, 64, 512)
PLAIN, PAIRED, EQUAL_DRAWS = "plain", "paired", "plain, equal draws"
MAPS = {
    PLAIN: "plain, M features from M draws",
    PAIRED: "paired, M features from M/2 draws",
    EQUAL_DRAWS: "plain, M/2 features from M/2 draws",
}
"""what a figure calls them; the last has as many draws as the paired map"""

VARIANCE_DRAWS = 200
SHOWN_FEATURES = 64
SHOWN_SCALE = 0.5
VARIANCE = Table(
    "variance",
    {"map": str, "directions": str, "num_features": int, "scale": float} | {"distance": int, "draw": int},
    {"squared_error": float, "expected": float},
)


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write variance.csv; returns nothing, as all of it can be measured."""
    tables = (rotated_score_table(directions=directions) for directions in DIRECTIONS)
    VARIANCE.write(root, *tables, float_format="%.6g")
    return []


def rotated_score_table(
    head_dim: int = 32,
    num_features: Sequence[int] = (32, 64, 128, 256),
    scales: Sequence[float] = (0.25, 0.5, 1.0),
    *,
    directions: Directions = "independent",
    pairs: int = 256,
    draws: int = VARIANCE_DRAWS,
) -> pd.DataFrame:
    """Squared error of the rotated score over the kernel, for each draw, and its expectation over independent draws.

    The error is measured from the known mean c(Δ), so its mean over draws is the variance. Queries and keys are
    N(0, scale²), the same for all draws; an error is the mean over the pairs. A draw of the paired map and of the plain
    one with equal draws has the same random directions.

    ``num_features`` are divisible by 4, as half of them are paired too; there are ``pairs`` queries, each with a key of
    its own. Columns as ``VARIANCE``.
    """
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, pairs, head_dim, generator=generator, dtype=torch.float64)
    factors = torch.tensor(scales, dtype=torch.float64)[:, None, None]
    q, k = factors * q, factors * k
    parts = []
    for count in num_features:
        for name in MAPS:
            features = count // 2 if name == EQUAL_DRAWS else count
            expected = expected_variance(q, k, features, paired=name == PAIRED).mean(1)
            mean = expected_rope_mask(torch.tensor(DISTANCES), features)
            for draw in range(draws):
                # Never the seed of the queries and keys, nor the same first directions for every M.
                mapping = FavorPlus(
                    head_dim,
                    features,
                    paired=name == PAIRED,
                    orthogonal=directions == "orthogonal",
                    seed=count * 2**20 + draw,
                    eps=0.0,
                ).features
                squared = (relative_scores(q, k, mapping(q), mapping(k)) - mean).square().mean(1)
                place = pd.MultiIndex.from_product([scales, DISTANCES], names=["scale", "distance"])
                values = {"squared_error": squared.flatten().numpy(), "expected": expected.flatten().numpy()}
                made = {"directions": directions, "num_features": count, "map": name, "draw": draw}
                parts.append(pd.DataFrame(values, place).assign(**made))
    columns = ["directions", "scale", "num_features", "map", "distance", "draw", *VARIANCE.values]
    return pd.concat(parts).reset_index()[columns]


def relative_scores(q: Tensor, k: Tensor, mapped_q: Features, mapped_k: Features) -> Tensor:
    """(R_Δ φ(q))ᵀφ(k) / exp(qᵀk/√D) for each of ``DISTANCES``: (..., P, distances) from (..., P, D)."""
    distances = torch.tensor(DISTANCES)
    assert mapped_q.log_scale is not None
    assert mapped_k.log_scale is not None
    repeated = mapped_q.values.unsqueeze(-2).expand(*mapped_q.values.shape[:-1], len(distances), -1)
    products = (apply_rope(repeated, distances) * mapped_k.values.unsqueeze(-2)).sum(-1)
    exact = (q * k).sum(-1, keepdim=True) / math.sqrt(q.shape[-1])
    return products * (mapped_q.log_scale + mapped_k.log_scale - exact).exp()


def expected_variance(q: Tensor, k: Tensor, num_features: int, *, paired: bool) -> Tensor:
    """Variance of ``relative_scores`` over independent draws (this module's docstring), (..., P, distances)."""
    x, y = q * q.shape[-1] ** -0.25, k * k.shape[-1] ** -0.25
    cosine_variance = torch.expm1((x + y).square().sum(-1, keepdim=True))
    sine_variance = torch.expm1((x - y).square().sum(-1, keepdim=True))
    angles = torch.tensor(DISTANCES, dtype=torch.float64).unsqueeze(-1) * rope_frequencies(num_features)
    cosines, sines = angles.cos().square().sum(-1), angles.sin().square().sum(-1)
    if paired:
        return 4 / num_features**2 * cosine_variance * cosines
    return 2 / num_features**2 * (cosine_variance * cosines + sine_variance * sines)


squared_error = VARIANCE.samples(planned=VARIANCE_DRAWS)
