"""What is measured on an attention matrix, when that is a collapse, and the warning of it."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from linear_rope.diagnostics.attention_weights import AttentionMatrices

Collapse = Literal["uniform", "arbitrary keys"]

# Measured with N(0, s²) queries and keys, D = 64, N = 512 and M = 64 / 256 / 1024 features. The kernel error is
# 0.66 / 0.39 / 0.21 at s = 0.5, 1.6 / 1.3 / 0.87 at s = 0.7 and 3.3 / 2.9 / 2.3 at s = 1. A row of zeros has error 1.
LARGEST_KERNEL_ERROR = 1.0
# The kernel then has 0.97 to 2 times softmax's distance from uniform: the noise of random features adds distance. Where
# an epsilon drowns the features (performer-pytorch's, relative to the largest key, M = 256) it has 0.89 times of it at
# s = 0.7 and 0.02 times at s = 1.
SMALLEST_SHARE_OF_DISTANCE = 0.5
# Where softmax itself is closer to uniform than this, becoming uniform loses nothing.
SMALLEST_SOFTMAX_DISTANCE = 0.05


class AttentionCollapseWarning(UserWarning):
    """FAVOR+ no longer estimates softmax on these queries and keys; see :attr:`AttentionDiagnostics.collapse`."""


class RowSums(NamedTuple):
    """The sums of a query's weights, over the queries that see a key.

    Attributes:
        smallest, mean, largest: 1 for weights that are a distribution.
    """

    smallest: float
    mean: float
    largest: float


@dataclass(frozen=True)
class AttentionDiagnostics:
    """Measures of one attention call, each over all sequences, heads and queries; padding is in none of them.

    Two matrices are measured. The *weights* are what multiplies the values: signed for RoPE after the map (RoFormer,
    arXiv 2104.09864, eq. 19). The *kernel* is φ(q)ᵀφ(k) with each row divided by its sum, before a rotation that
    comes after the map: a distribution, and with FAVOR+ an estimate of softmax (Choromanski et al. 2020, arXiv
    2009.14794, lemma 1). It is compared with the exact softmax of qᵀk/√D for the same q and k, which
    ``rope="before"`` has rotated.
    """

    kernel_error: float | None
    """mean over queries of ‖kernel row − softmax row‖₂ / ‖softmax row‖₂. What scales a whole row cancels in the
    attention and is not counted. 0 for softmax attention. elu+1 and relu do not estimate softmax; for them it says how
    different they are, not how wrong. None where no query sees two keys"""
    distance_from_uniform: float | None
    """mean over queries of the total variation distance ½·Σ_j |kernel_j − 1/n| from the uniform distribution over the
    n keys that the query sees: 0 is uniform, near 1 is a single key among many. None where no query sees two keys"""
    softmax_distance_from_uniform: float | None
    """the same of the exact softmax"""
    smallest_denominator: float | None
    """what the quotient divides by, the value closest to zero (only ``denominator="rotated"`` can be negative), in
    units of the largest feature of that query times the largest feature of a key that it sees: at most the number of
    features times that of keys. For softmax, Σ_j exp(score_j − largest score). None for the denominators "none" and
    "abs", which is 1 or more"""
    nonpositive_denominators: float | None
    """the share of queries whose denominator is zero or below; None without a denominator"""
    negative_share: float
    """the share of the weights of visible keys that are below zero"""
    row_sums: RowSums
    """of the weights"""
    collapse: Collapse | None
    """for FAVOR+ only: "uniform" where the kernel has less than half of softmax's distance from uniform (and softmax
    more than 0.05), "arbitrary keys" where the kernel's error is 1 or more, which rows of zeros would have: the weight
    goes to a few keys whose random features happen to be large. None where it is neither"""

    def __str__(self) -> str:
        sums = " … ".join(map(_number, self.row_sums))
        lines = {
            "kernel error": _number(self.kernel_error),
            "distance from uniform": _number(self.distance_from_uniform),
            "softmax's distance": _number(self.softmax_distance_from_uniform),
            "smallest denominator": _number(self.smallest_denominator),
            "denominators ≤ 0": "-"
            if self.nonpositive_denominators is None
            else f"{self.nonpositive_denominators:.1%}",
            "negative share": f"{self.negative_share:.1%}",
            "row sums": f"{sums}  (smallest … mean … largest)",
            "collapse": self.collapse or "none",
        }
        return "\n".join(f"{name:<23}{value}" for name, value in lines.items())


def measure(matrices: AttentionMatrices, *, estimates_softmax: bool) -> AttentionDiagnostics:
    """The measures of one attention call.

    Args:
        matrices: of the call; at least one query sees a key.
        estimates_softmax: whether a kernel far from softmax is a collapse.
    """
    weights, kernel, softmax, denominator, visible = matrices
    seen = visible.sum(-1, keepdim=True)
    uniform = visible.to(weights.dtype) / seen.clamp(min=1)
    # A query that sees one key gives it everything: it is uniform, and exact, by force.
    chooses = (seen > 1).squeeze(-1).expand(weights.shape[:-1])
    sees = (seen > 0).squeeze(-1).expand(weights.shape[:-1])

    def mean_distance(rows: Tensor) -> float | None:
        return _mean(((rows - uniform).abs().sum(-1) / 2)[chooses])

    error = _mean(((kernel - softmax).norm(dim=-1) / softmax.norm(dim=-1))[chooses])
    distance, softmax_distance = mean_distance(kernel), mean_distance(softmax)
    sums, below = weights.sum(-1)[sees], None if denominator is None else denominator[sees]
    return AttentionDiagnostics(
        kernel_error=error,
        distance_from_uniform=distance,
        softmax_distance_from_uniform=softmax_distance,
        smallest_denominator=None if below is None else below[below.abs().argmin()].item(),
        nonpositive_denominators=None if below is None else _mean((below <= 0).to(weights.dtype)),
        negative_share=((weights < 0) & visible).sum().item() / visible.expand_as(weights).sum().item(),
        row_sums=RowSums(sums.min().item(), sums.mean().item(), sums.max().item()),
        collapse=_collapse(error, distance, softmax_distance) if estimates_softmax else None,
    )


def _collapse(error: float | None, distance: float | None, softmax_distance: float | None) -> Collapse | None:
    if error is None or distance is None or softmax_distance is None:
        return None
    if softmax_distance > SMALLEST_SOFTMAX_DISTANCE and distance < SMALLEST_SHARE_OF_DISTANCE * softmax_distance:
        return "uniform"
    return "arbitrary keys" if error >= LARGEST_KERNEL_ERROR else None


_warned = False


def warn_of_collapse(measured: Mapping[str, AttentionDiagnostics]) -> None:
    """One :class:`AttentionCollapseWarning` a process, about what collapsed among layers by name."""
    global _warned
    collapsed = {name: layer for name, layer in measured.items() if layer.collapse is not None}
    if _warned or not collapsed:
        return
    _warned = True
    name, first = next(iter(collapsed.items()))
    found = {
        "uniform": "it is almost uniform although softmax of the same queries and keys is not",
        "arbitrary keys": "it gives its weight to a few arbitrary keys instead of those that softmax chooses",
    }[first.collapse or "uniform"]
    warnings.warn(
        f"FAVOR+ attention has collapsed in {len(collapsed)} of {len(measured)} layers, first in {name}: {found} "
        f"(kernel error {_number(first.kernel_error)}; distance from uniform {_number(first.distance_from_uniform)}, "
        f"softmax's {_number(first.softmax_distance_from_uniform)}). Queries and keys of smaller norm help most; then "
        "more features (num_features), feature_map='favor+hyperbolic', a redraw of the features (redraw_every), or "
        "feature_map='elu+1', which does not estimate softmax. This warning comes once in a process; "
        "AttentionDiagnostics.collapse has every layer's.",
        AttentionCollapseWarning,
        stacklevel=3,
    )


def _mean(values: Tensor) -> float | None:
    return values.mean().item() if values.numel() else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
