"""What every implementation sums, and how the sums become the output.

Axis names: B batch, H heads, N queries, K keys, M features, D value width.

    numerator_i   = Σ_j  (q_iᵀ k_j) · exp(g_j − c_i) · v_j
    denominator_i = Σ_j  (q'_iᵀ k'_j) · exp(g_j − c_i)

q and k are mapped (and, with RoPE after the map, rotated); q' and k' are those of the denominator (unrotated in
RoFormer eq. 19). g_j is the logarithm of key j's own scale, c_i = max g_j over the keys that query i sees: the
stabiliser is causal, every factor is at most 1, and c_i cancels in the quotient.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor


class Terms(NamedTuple):
    """Mapped inputs of one attention call, in float32 or float64.

    Attributes:
        q: (B, H, N, M) queries of the numerator.
        k: (B, H, K, M) keys of the numerator; zero at padding.
        v: (B, H, K, D) values; zero at padding.
        denominator_q, denominator_k: the same for the denominator; None where it uses q and k (or there is none).
        has_denominator: False for denominator="none".
        query_scale: (B, H, N) logarithm of each query's scale, or None; it matters where nothing cancels it.
        key_scale: (B, H, K) logarithm g_j of each key's scale, the most negative number at padding; or None.
        mapped_q, mapped_k: the features before a rotation after the map.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    denominator_q: Tensor | None
    denominator_k: Tensor | None
    has_denominator: bool
    query_scale: Tensor | None
    key_scale: Tensor | None
    mapped_q: Tensor
    mapped_k: Tensor


class TermGradients(NamedTuple):
    """The gradients of the fields of :class:`Terms` that have one."""

    q: Tensor
    k: Tensor
    v: Tensor
    denominator_q: Tensor | None
    denominator_k: Tensor | None


class Sums(NamedTuple):
    """Attributes:
    numerator: (B, H, N, D).
    denominator: (B, H, N), or None.
    stabiliser: c_i, (B, H, N) or broadcastable to it, or None without key scales.
    """

    numerator: Tensor
    denominator: Tensor | None
    stabiliser: Tensor | None


# Without a denominator nothing cancels the exponentials; beyond e^60 they are cut off, so that they stay finite.
LARGEST_LOG_SCALE = 60.0


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Keeps autocast from lowering the precision of what is computed under it."""
    available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if available else nullcontext()


def attention_output(sums: Sums, query_scale: Tensor | None) -> Tensor:
    """(B, H, N, D): the quotient, zero for a query that sees no key; or the plain sum without a denominator."""
    gain = output_gain(sums, query_scale)
    return sums.numerator if gain is None else sums.numerator * gain


def output_gain(sums: Sums, query_scale: Tensor | None) -> Tensor | None:
    """What the numerator is multiplied by, (B, H, N, 1), or None for 1."""
    _, denominator, stabiliser = sums
    if denominator is not None:
        sees_none = denominator == 0
        return torch.where(sees_none, 0, 1 / torch.where(sees_none, 1, denominator)).unsqueeze(-1)
    if stabiliser is None or query_scale is None:
        return None
    return (stabiliser + query_scale).clamp(max=LARGEST_LOG_SCALE).exp().unsqueeze(-1)
