"""Softmax attention over a window of keys and FAVOR+ over those before it, under one denominator.

    out_m = (Σ_{m−W<n≤m} exp(s_mn) v_n + Σ_{n≤m−W} φ(q_m)ᵀφ(k_n) v_n) / (the same sums without v),   s_mn = q_mᵀk_n / √D

φ(q)ᵀφ(k) estimates exp(qᵀk / √D), so the two sums are of one kind; each comes as a mean and the logarithm of its total.
A decay multiplies the weight of key n by Π_{n<t≤m} a_t in both.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope.ops.decay import faded


class Sequence(NamedTuple):
    """Attributes:
    q, k: (B, H, N, D).
    v: (B, H, N, Dv).
    padding: (B, N) bool, True at keys that are not seen; or None.
    log_decay: (B, H, N), or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    padding: Tensor | None
    log_decay: Tensor | None


class Share(NamedTuple):
    """Part of an attention.

    Attributes:
        mean: (B, H, N, Dv), the mean of the values by weight; zero where there is none.
        log_total: (B, H, N), the logarithm of the sum of weights; −∞ where there is none.
    """

    mean: Tensor
    log_total: Tensor


def together(one: Share, other: Share) -> Tensor:
    """(B, H, N, Dv), under one denominator."""
    largest = torch.maximum(one.log_total, other.log_total).detach()
    largest = largest.masked_fill(largest.isneginf(), 0)
    first, second = (share.log_total.sub(largest).exp() for share in (one, other))
    total = first + second
    total = total.masked_fill(total == 0, 1)
    return one.mean * (first / total).unsqueeze(-1) + other.mean * (second / total).unsqueeze(-1)


def in_window(sequence: Sequence, window: int) -> Share:
    """Softmax attention of each query over its own key and the ``window`` − 1 before it, linear in the length."""
    q, k, v, padding, log_decay = sequence
    length = q.shape[2]
    extra = -length % window

    def blocks(x: Tensor) -> Tensor:
        """(..., N, C) → (..., N / W, W, C)."""
        return F.pad(x, (0, 0, 0, extra)).unflatten(-2, (-1, window))

    def with_block_before(x: Tensor) -> Tensor:
        """(..., N / W, W, C) → (..., N / W, 2 · W, C); zeros are before the first."""
        return torch.cat((F.pad(x, (0, 0, 0, 0, 1, 0))[..., :-1, :, :], x), dim=-2)

    place = torch.arange(2 * window, device=q.device)
    behind = torch.arange(window, 2 * window, device=q.device).unsqueeze(-1) - place
    queries, keys, values = blocks(q), with_block_before(blocks(k)), with_block_before(blocks(v))
    visible = ((behind >= 0) & (behind < window)).expand(queries.shape[2], -1, -1).clone()
    visible[0, :, :window] = False
    if padding is not None:
        seen = with_block_before(blocks((~padding).to(q.dtype).unsqueeze(-1))).squeeze(-1) > 0
        visible = visible & seen[:, None, :, None, :]
    scores = queries @ keys.mT * q.shape[-1] ** -0.5
    if log_decay is not None:
        sums, segment = (blocks(x.unsqueeze(-1)) for x in faded(log_decay))
        between = sums - with_block_before(sums).mT
        scores = scores + torch.where(visible, between, 0).to(scores.dtype)
        visible = visible & (segment == with_block_before(segment).mT)
    scores = scores.masked_fill(~visible, -torch.inf)
    sees_none = ~visible.any(-1, keepdim=True)
    scores = scores.masked_fill(sees_none, 0)
    log_total = scores.logsumexp(-1, keepdim=True)
    mean = ((scores - log_total).exp() @ values).masked_fill(sees_none, 0)
    log_total = log_total.masked_fill(sees_none, -torch.inf).squeeze(-1)
    return Share(mean.flatten(2, 3)[:, :, :length], log_total.flatten(2, 3)[:, :, :length])


def fading_over(log_decay: Tensor, window: int) -> Tensor:
    """Σ ln a_t of token m and the ``window`` − 1 before it, (..., N) → (..., N − W) for m ≥ W; −∞ with a reset."""
    sums, segment = faded(log_decay)
    between = sums[..., window:] - sums[..., :-window]
    return between.masked_fill(segment[..., window:] != segment[..., :-window], -torch.inf).to(log_decay.dtype)
