"""Causal linear attention by a kernel of flash-linear-attention, on a GPU (the extra ``fla``).

``chunk_simple_gla`` sums Σ_{j ≤ i} (q_iᵀ k_j) · exp(Σ_{j < t ≤ i} d_t) · v_j. Scales of keys become a part of d: with
c_t the largest exponent that token t sees, d_t = ln a_t + c_{t−1} − c_t ≤ 0, and key j enters times exp(g_j − c_j). The
denominator is summed here, in float32: the kernel's products of float32 are TF32 unless TRITON_F32_DEFAULT=ieee is set.

Axis names: B batch, H heads, N positions, M features, D value width, C chunk size, n = N / C.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope.ops.decay import faded, segmented_maximum
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.definition import Sums
from linear_rope.tracing import has_tangent

CHUNK_SIZE = 64
SMALLEST_LOG_KEPT = -40.0
"""of d_t: of a long past, less than float32 resolves is left, also by a reset, and sums of d_t stay finite"""


def fla(terms: Call) -> Sums:
    """The sums of :mod:`linear_rope.ops.linear.definition`, differentiable once.

    Raises:
        ValueError: it is not causal, or in forward mode, or the kernel cannot be had for these tensors.
    """
    if not terms.causal:
        raise ValueError(
            'implementation is "fla", whose kernel is causal, and causal is False; give causal=True, or '
            'implementation="auto"'
        )
    if has_tangent(*terms):
        raise ValueError(
            'implementation is "fla", whose kernel has no forward-mode derivative, and a tensor has a tangent '
            '(torch.func.jvp, torch.autograd.forward_ad); choose implementation="chunked"'
        )
    kernel = _kernel(terms.q)
    log_kept, scale, entering = _exponents(terms)
    k, denominator_k = (_times(x, entering) for x in (terms.k, terms.denominator_k))
    assert k is not None
    by_token = [x.transpose(1, 2).contiguous() for x in (terms.q, k, terms.v)]
    gates = None if log_kept is None else log_kept.to(terms.q.dtype).transpose(1, 2).contiguous()
    numerator, _ = kernel(*by_token, g=gates, scale=1.0)
    denominator = None
    if terms.denominator_q is not None and denominator_k is not None:
        denominator = _denominator(terms.denominator_q, denominator_k, log_kept)
    elif terms.has_denominator:
        denominator = _denominator(terms.q, k, log_kept)
    return numerator.transpose(1, 2), denominator, scale


def _kernel(like: Tensor) -> Callable[..., tuple[Tensor, Any]]:
    remedy = 'choose "auto" or "chunked"'
    if like.device.type != "cuda" or like.dtype != torch.float32:
        raise ValueError(
            f'implementation is "fla", whose kernel is for a GPU and for float32 and less, but it is to compute in '
            f"{like.dtype} on {like.device}; {remedy}"
        )
    try:
        from fla.ops.simple_gla import chunk_simple_gla
    except ImportError as error:
        raise ValueError(
            f'implementation is "fla", but fla-core cannot be imported ({error}); pip install linear-rope[fla], or '
            f"{remedy}"
        ) from error
    return chunk_simple_gla


def _exponents(terms: Call) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """d_t, c_t (a constant for autograd) and g_t − c_t, each (B, H, N) or None for zero."""
    log_kept, scale, entering = terms.log_decay, None, None
    if terms.key_scale is not None:
        scale = _largest(terms.key_scale.detach(), None if log_kept is None else log_kept.detach())
        entering = terms.key_scale - scale
        fallen = torch.cat((scale[..., :1], scale[..., :-1]), dim=-1) - scale
        log_kept = fallen if log_kept is None else log_kept + fallen
    return None if log_kept is None else log_kept.clamp(min=SMALLEST_LOG_KEPT), scale, entering


def _largest(key_scale: Tensor, log_decay: Tensor | None) -> Tensor:
    """c_t, the maximum of g_j + L_t − L_j over the keys that token t sees."""
    if log_decay is None:
        return key_scale.cummax(-1).values
    sums, segment = faded(log_decay)
    return segmented_maximum(key_scale - sums, segment) + sums


def _times(k: Tensor | None, exponent: Tensor | None) -> Tensor | None:
    return k if k is None or exponent is None else k * exponent.exp().to(k.dtype).unsqueeze(-1)


def _denominator(q: Tensor, k: Tensor, log_kept: Tensor | None) -> Tensor:
    """Σ_{j ≤ i} (q_iᵀ k_j) · exp(Σ_{j < t ≤ i} d_t), (B, H, N)."""
    length = q.shape[-2]
    if log_kept is None:
        return (q * k.cumsum(-2)).sum(-1)
    rest = -length % CHUNK_SIZE
    q, k = (F.pad(x, (0, 0, 0, rest)).unflatten(2, (-1, CHUNK_SIZE)) for x in (q, k))
    sums = F.pad(log_kept.double(), (0, rest)).unflatten(2, (-1, CHUNK_SIZE)).cumsum(-1)  # (B, H, n, C)
    later = torch.ones(CHUNK_SIZE, CHUNK_SIZE, dtype=torch.bool, device=q.device).triu(1)
    between = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill(later, -torch.inf)
    inside = ((q @ k.mT) * between.exp().to(q.dtype)).sum(-1)
    end = sums[..., -1:]
    state = (k * (end - sums).exp().to(k.dtype).unsqueeze(-1)).sum(-2)  # (B, H, n, M), what each chunk adds
    sums_of_chunks, step = end.cumsum(-2), 1
    while step < state.shape[-2]:  # to the sum over twice as many chunks
        kept = (sums_of_chunks[:, :, step:] - sums_of_chunks[:, :, :-step]).exp().to(k.dtype)
        state = torch.cat((state[:, :, :step], state[:, :, step:] + kept * state[:, :, :-step]), dim=2)
        step *= 2
    before = F.pad(state, (0, 0, 1, 0))[:, :, :-1]
    carried = sums.exp().to(q.dtype) * (q * before.unsqueeze(-2)).sum(-1)
    return (inside + carried).flatten(2)[..., :length]
