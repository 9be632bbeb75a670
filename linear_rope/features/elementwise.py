"""Feature maps of each channel by itself, without random numbers."""

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope.features.base import FeatureMap, Features, Formula, FormulaCall, of_pairs, pairs
from linear_rope.small_calls import exponential_of_negative

# elu(x) + 1 is e^x below zero: at e^−30 = 1e-13 it stops, so that the smallest denominator that products of two can
# make, and the gradients that are divided by it, are ordinary float32 numbers.
SMALLEST_EXPONENT = -30.0


class EluPlusOne(FeatureMap):
    """φ(x) = elu(x) + 1 (Katharopoulos et al. 2020, arXiv 2006.16236, eq. 7); M = D.

    It falls no further than to e^−30, and has no gradient below that.

    Args:
        head_dim: D; None takes any.
        paired: use every feature twice, as both members of a rotated pair, M = 2·D (see :class:`FavorPlus`).
    """

    def __init__(self, head_dim: int | None = None, *, paired: bool = False) -> None:
        super().__init__(head_dim, 2 * head_dim if paired and head_dim is not None else head_dim)
        self.paired = paired

    def count(self, head_dim: int) -> int:
        return 2 * head_dim if self.paired else head_dim

    def features(self, x: Tensor) -> Features:
        # elu(x) + 1 = exp(min(x, 0)) + max(x, 0), which keeps precision where elu(x) is close to −1.
        values = exponential_of_negative(x.clamp(SMALLEST_EXPONENT, 0.0)) + x.relu()
        return Features(values.repeat_interleave(2, dim=-1) if self.paired else values, None)

    def formula(self) -> FormulaCall | None:
        return FormulaCall("elu+1", None, [self.paired]) if type(self) is EluPlusOne else None


class EluFormula(Formula):
    """:class:`EluPlusOne` by hand."""

    numbers = ("paired",)

    def features(self, x: Tensor) -> Features:
        values = torch.clamp(x, SMALLEST_EXPONENT, 0.0).exp_().add_(x.relu())
        return Features(pairs(values) if self.paired else values, None)

    def gradient(self, x: Tensor, values: Tensor, grad_values: Tensor) -> Tensor:
        if self.paired:
            values, grad_values = of_pairs(values, grad_values)
        return grad_values.mul_(values.clamp_(max=1)).masked_fill_(x < SMALLEST_EXPONENT, 0)


class _Elementwise(FeatureMap):
    """M = D.

    Args:
        head_dim: D; None takes any.
    """

    def __init__(self, head_dim: int | None = None) -> None:
        super().__init__(head_dim, head_dim)


class ReluFeatures(_Elementwise):
    """φ(x) = relu(x) + ε; M = D. ε keeps a denominator away from zero and a gradient defined.

    Outputs are finite, not small. Without RoPE, or with RoPE before the map, they are means of the values. With RoPE
    after the map (and the unrotated denominator) an output can be |φ(q)| / ε times the largest value, where no key is
    positive where the query is; it is no more than that, because φ(q)ᵀφ(k) ≥ ε |φ(k)|.

    Args:
        head_dim: D; None takes any.
        eps: ε.
    """

    def __init__(self, head_dim: int | None = None, *, eps: float = 1e-6) -> None:
        super().__init__(head_dim)
        self.eps = eps

    def features(self, x: Tensor) -> Features:
        return Features(x.relu() + self.eps, None)

    def formula(self) -> FormulaCall | None:
        return FormulaCall("relu", None, [self.eps]) if type(self) is ReluFeatures else None


class ReluFormula(Formula):
    """:class:`ReluFeatures` by hand."""

    numbers = ("eps",)

    def features(self, x: Tensor) -> Features:
        return Features(torch.clamp(x, min=0.0).add_(self.eps), None)

    def gradient(self, x: Tensor, values: Tensor, grad_values: Tensor) -> Tensor:
        return grad_values.mul_(x > 0)


class SiluFeatures(_Elementwise):
    """φ(x) = x · σ(x), which can be negative: for attention without a denominator; M = D."""

    def features(self, x: Tensor) -> Features:
        return Features(F.silu(x), None)


class GivenFeatures(_Elementwise):
    """φ(x) = x, for queries and keys that are features already: non-negative, and not all zero; M = D."""

    def features(self, x: Tensor) -> Features:
        return Features(x, None)

    def formula(self) -> FormulaCall | None:
        return GIVEN if type(self) is GivenFeatures else None


GIVEN = FormulaCall("given", None, [])
