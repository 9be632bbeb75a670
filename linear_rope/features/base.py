"""Feature maps φ: R^D → R^M with φ(q)ᵀφ(k) ≥ 0, the kernels of linear attention.

The exponentials of FAVOR+ overflow or vanish, so a map returns its features in two parts, ``values · exp(log_scale)``:
``values`` are at most about 1, ``log_scale`` is one number per vector. Each vector is scaled by its own maximum, never
by that of other positions: nothing leaks from the future, and one token mapped alone gives what it gives in a batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Features(NamedTuple):
    """Mapped vectors, φ(x) = ``values`` · exp(``log_scale``).

    Attributes:
        values: (..., M), of which any two vectors have a product that is not negative.
        log_scale: (..., 1); None where it would be zero everywhere.
    """

    values: Tensor
    log_scale: Tensor | None


class Formula:
    """A map and its derivative, written by hand: the operator maps a stretch at a time.

    Made with the constant, if it has one, and the numbers of a :class:`FormulaCall`.
    """

    has_constant = False
    has_scale = False
    """whether its features have a log_scale"""
    numbers: tuple[str, ...] = ()
    """what the numbers of a call are, of "hyperbolic", "paired" and "eps"; the others are 0"""

    def __init__(self, *numbers: float) -> None:
        self.hyperbolic, self.paired, self.eps = self.settings(numbers)

    @classmethod
    def settings(cls, numbers: Sequence[float]) -> tuple[bool, bool, float]:
        """As kernels in other languages take them: whether the map is hyperbolic, whether paired, and its ε."""
        given = dict(zip(cls.numbers, numbers, strict=False))
        return bool(given.get("hyperbolic")), bool(given.get("paired")), float(given.get("eps", 0))

    @classmethod
    def count(cls, width: int, constant: Tensor | None, numbers: Sequence[float]) -> int:
        """M for vectors of this width."""
        hyperbolic, paired, _ = cls.settings(numbers)
        rows = constant.shape[0] if cls.has_constant and constant is not None else width
        return 2 * rows if hyperbolic or paired else rows

    def features(self, x: Tensor) -> Features:
        """Map ``x`` (..., D), contiguous."""
        return Features(x, None)

    def gradient(self, x: Tensor, values: Tensor, grad_values: Tensor) -> Tensor:
        """The gradient of ``x`` from that of the values and, where there is one, of the scale, which is
        Σ values · grad_values because it multiplies them all; overwrites ``values`` and ``grad_values``."""
        return grad_values


def pairs(values: Tensor) -> Tensor:
    """Every feature twice, side by side, for maps that are rotated with themselves: (..., M / 2) → (..., M)."""
    return values.repeat_interleave(2, dim=-1)


def of_pairs(values: Tensor, grad_values: Tensor) -> tuple[Tensor, Tensor]:
    """The features that :func:`pairs` used twice, and their gradient: the sum of those of both members."""
    return values[..., ::2], grad_values[..., ::2] + grad_values[..., 1::2]


class FormulaCall(NamedTuple):
    """Which formula an operator is to use, in what an operator can take: its name in
    :data:`linear_rope.features.registry.FORMULAS`, a tensor that has no gradient, or None, and settings.
    """

    formula: str
    constant: Tensor | None
    numbers: list[float]


class FeatureMap(nn.Module):
    """A positive map of queries and keys; subclass it and define :meth:`features` to add one.

    ``queries`` and ``keys`` are what attention calls. Called as a module it gives φ(x) itself, which may overflow.
    A map is a function of each position by itself; ordinary autograd differentiates it.

    Args:
        head_dim: D, or None where any D will do.
        num_features: M, or None where D decides (see :meth:`count`).

    Attributes:
        initial_gain: the root mean square at which queries and keys begin where ``qk_norm`` normalises them.
        of_scores: whether φ(q)ᵀφ(k) is a function of the score qᵀk / √D, or estimates one; see :meth:`score_scale`.
        estimates_softmax: whether that is its exponential, so that a kernel far from softmax's is a collapse.
        precision: the least in which features are computed and summed.
    """

    initial_gain = 1.0
    of_scores = False
    estimates_softmax = False
    precision = torch.float32

    def __init__(self, head_dim: int | None = None, num_features: int | None = None) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.num_features = num_features

    def features(self, x: Tensor) -> Features:
        """Map ``x`` (..., D), float32 or float64."""
        raise NotImplementedError

    def formula(self) -> FormulaCall | None:
        """A derivative by hand, which keeps no features for the backward pass; None leaves it to autograd."""
        return None

    def count(self, head_dim: int) -> int:
        """M for vectors of width ``head_dim``."""
        return head_dim if self.num_features is None else self.num_features

    def score_scale(self, wanted: float) -> float:
        """The factor that scores qᵀk / √D get where a model wants them ``wanted`` times as large, as with YaRN's
        temperature: that, where the map is one of scores. Other maps take no notice of it, and have 1."""
        return wanted if self.of_scores else 1.0

    def maybe_redraw(self) -> None:
        """Called at every forward pass of an attention: what has random features may draw them again."""

    def queries(self, q: Tensor) -> Features:
        """Map queries (..., N, D); computed in float32 or better."""
        return self._checked(q)

    def keys(self, k: Tensor) -> Features:
        """Map keys (..., N, D); computed in float32 or better."""
        return self._checked(k)

    def forward(self, x: Tensor) -> Tensor:
        """φ(x), (..., D) → (..., M), without a stabiliser."""
        values, log_scale = self._checked(x)
        return values if log_scale is None else values * log_scale.exp()

    def _checked(self, x: Tensor) -> Features:
        self.check_width(x)
        found = self.features(x.to(torch.promote_types(x.dtype, self.precision)))
        if found.log_scale is not None and found.log_scale.shape != (*x.shape[:-1], 1):
            raise ValueError(
                f"{type(self).__name__} gave a log_scale of shape {tuple(found.log_scale.shape)} for vectors of shape "
                f"{tuple(x.shape)}; give {(*x.shape[:-1], 1)}"
            )
        return found

    def check_width(self, x: Tensor) -> None:
        """Raises ValueError unless the last axis of ``x`` is what this map was made for, and its device can map it."""
        if self.precision == torch.float64 and x.device.type == "mps":
            raise ValueError(
                f"{type(self).__name__} is computed in float64, which {x.device} has not; choose another feature map, "
                "or another device"
            )
        if self.head_dim is not None and x.shape[-1] != self.head_dim:
            raise ValueError(
                f"{type(self).__name__} was made for head_dim {self.head_dim}, but the last axis of a tensor of shape "
                f"{tuple(x.shape)} has {x.shape[-1]}; make the feature map with head_dim={x.shape[-1]}"
            )

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, num_features={self.num_features}"
