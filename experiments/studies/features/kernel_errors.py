"""Random-feature estimates of the softmax kernel exp(qᵀk/√D), how far they are off, and what theory says of that.

Axis names: ... any leading axes, such as heads; L queries and as many keys; D head width; M features.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from linear_rope import FavorPlus
from linear_rope.features import Features, gaussian_rows

Directions = Literal["orthogonal", "independent"]
DIRECTIONS: tuple[Directions, ...] = ("orthogonal", "independent")

Mapping = Callable[[Tensor], Features]


class Errors(NamedTuple):
    """Attributes, each of shape (...):

    kernel: mean over all pairs of (estimate / kernel − 1)², the mean squared error relative to the squared kernel.
    attention: ‖Â − A‖ / ‖A‖ (Frobenius) of the attention matrices, the rows of both divided by their sums.
    output: mean squared error of what attention gives for values of unit variance.
    """

    kernel: Tensor
    attention: Tensor
    output: Tensor


def favor(head_dim: int, num_features: int, directions: Directions, seed: int, hyperbolic: bool = False) -> Mapping:
    """FAVOR+ as the library has it, without the ε that it adds to keep denominators off zero.

    ``hyperbolic``: every direction is used with both signs, M features from M/2 draws.
    """
    orthogonal = directions == "orthogonal"
    return FavorPlus(head_dim, num_features, hyperbolic=hyperbolic, orthogonal=orthogonal, seed=seed, eps=0.0).features


def trigonometric(head_dim: int, num_features: int, directions: Directions, seed: int) -> Mapping:
    """exp(|x'|²/2)·(sin ωx', cos ωx')/√(M/2), x' = x/D^¼ (Rahimi & Recht 2007; Choromanski et al. 2020, eq. 5).

    M features from M/2 draws. Unbiased like the others, but the estimate of a positive kernel can be negative: a
    baseline for comparison, which the library does not offer.
    """
    generator = torch.Generator().manual_seed(seed)
    omega = gaussian_rows(num_features // 2, head_dim, orthogonal=directions == "orthogonal", generator=generator)

    def features(x: Tensor) -> Features:
        scaled = x * head_dim**-0.25
        angles = scaled @ omega.to(x.dtype).T
        values = torch.cat((angles.sin(), angles.cos()), dim=-1) / math.sqrt(num_features // 2)
        return Features(values, scaled.square().sum(-1, keepdim=True) / 2)

    return features


ESTIMATORS: dict[str, Callable[[int, int, Directions, int], Mapping]] = {
    "positive": favor,
    "hyperbolic": partial(favor, hyperbolic=True),
    "trigonometric": trigonometric,
}
"""every one takes head_dim, num_features (even), directions and a seed"""


def errors(q: Tensor, k: Tensor, v: Tensor, mapping: Mapping) -> Errors:
    """How far an estimator is off for queries, keys and values (..., L, D) in float64; attention without a mask.

    An error beyond float64 is infinite; a row of the estimate that sums to zero makes the last two not a number.
    """
    (q_values, q_scale), (k_values, k_scale) = mapping(q), mapping(k)
    assert q_scale is not None
    assert k_scale is not None
    products, exact = q_values @ k_values.mT, scores(q, k)
    # The scales meet the exact score in the exponent, where they cancel; a query's own scale cancels in its row.
    ratio = products * (q_scale + k_scale.mT - exact).exp()
    weights = products * (k_scale - k_scale.amax(-2, keepdim=True)).mT.exp()
    softmax = exact.softmax(-1)
    difference = weights / weights.sum(-1, keepdim=True) - softmax
    return Errors(
        (ratio - 1).square().mean((-2, -1)),
        difference.norm(dim=(-2, -1)) / softmax.norm(dim=(-2, -1)),
        (difference @ v).square().mean((-2, -1)),
    )


def scores(q: Tensor, k: Tensor) -> Tensor:
    """qᵀk/√D, (..., L, L)."""
    return q @ k.mT / math.sqrt(q.shape[-1])


def expected_kernel_error(estimator: str, q: Tensor, k: Tensor, num_features: int) -> Tensor:
    """The expectation of :attr:`Errors.kernel` over independent draws, (...) (Choromanski et al. 2020).

    With x and y the scaled query and key, s = |x + y|² and d = |x − y|², the mean squared error of m draws over the
    squared kernel is (e^s − 1)/m for positive features, (cosh s − 1)/m for hyperbolic ones, and (cosh d − 1)/m for
    trigonometric ones; the latter two have two features a draw, so m = M/2.
    """
    squares = (q.square().sum(-1).unsqueeze(-1) + k.square().sum(-1).unsqueeze(-2)) / math.sqrt(q.shape[-1])
    if estimator == "positive":
        return torch.expm1(squares + 2 * scores(q, k)).mean((-2, -1)) / num_features
    sign = {"hyperbolic": 1, "trigonometric": -1}[estimator]
    # cosh a − 1 = 2 sinh²(a/2), without the cancellation.
    sinh = torch.sinh((squares + sign * 2 * scores(q, k)) / 2)
    return 2 * sinh.square().mean((-2, -1)) / (num_features // 2)
