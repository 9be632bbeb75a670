"""What every implementation sums, and how the sums become the output.

Axis names: B batch, H heads, N queries, K keys, M features, D value width.

    numerator_i   = Σ_j  (q_iᵀ k_j) · exp(g_j + L_i − L_j − c_i) · v_j
    denominator_i = Σ_j  (q'_iᵀ k'_j) · exp(g_j + L_i − L_j − c_i)

q and k are mapped (and, with RoPE after the map, rotated); q' and k' are those of the denominator (unrotated in
RoFormer eq. 19). g_j is the logarithm of key j's own scale. L_i = Σ_{t ≤ i} ln a_t, where a_t in [0, 1] is what the
past keeps at token t; both directions of a sequence fade, by −|L_i − L_j|. c_i is the largest exponent among the keys
that query i sees (of g_j alone with a scale, zero without): every factor is at most 1, and c_i cancels in the quotient.
"""

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
        log_decay: (B, H, N) ln a_t ≤ 0, zero at padding; or None for a_t = 1.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    denominator_q: Tensor | None
    denominator_k: Tensor | None
    has_denominator: bool
    query_scale: Tensor | None
    key_scale: Tensor | None
    log_decay: Tensor | None


class Sums(NamedTuple):
    """Attributes:
    numerator: (B, H, N, D).
    denominator: (B, H, N), or None.
    scale: c_i, (B, H, N) or broadcastable to it, a constant for autograd; None for zero.
    """

    numerator: Tensor
    denominator: Tensor | None
    scale: Tensor | None


# Without a denominator nothing cancels the exponentials; beyond e^60 they are cut off, so that they stay finite.
LARGEST_LOG_SCALE = 60.0


def attention_output(sums: Sums, query_scale: Tensor | None) -> Tensor:
    """(B, H, N, D): the quotient, zero for a query that sees no key; or the plain sum without a denominator.

    It is linear in the numerator, so it also takes gradients of the output to those of the numerator.
    """
    numerator, denominator, scale = sums
    if denominator is not None:
        return quotient(numerator, denominator)
    scales = [x for x in (scale, query_scale) if x is not None]
    if not scales:
        return numerator
    log_scale = sum(scales[1:], start=scales[0])
    # The gradient goes on as if nothing were cut off, as that by hand does.
    cut_off = LARGEST_LOG_SCALE + (log_scale - log_scale.detach())
    log_scale = torch.where(log_scale > LARGEST_LOG_SCALE, cut_off, log_scale)
    return numerator * log_scale.exp().to(numerator.dtype).unsqueeze(-1)


def quotient(numerator: Tensor, denominator: Tensor) -> Tensor:
    """``numerator`` (B, H, N, D) over ``denominator`` (B, H, N), zero where that is zero."""
    # No reciprocal: its derivative has the square of a denominator, which need not be a float32 number.
    return numerator / denominator.masked_fill(denominator == 0, torch.inf).unsqueeze(-1)
