"""The N × K matrices of one attention call. Quadratic in memory, and dense on purpose: for looking at.

Axis names: B batch, H heads, N queries, K keys, D head width, M features.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from linear_rope.attention.linear import LinearRoPEAttention
from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.attention.projected import Projected, without_padding, zero_at_padding
from linear_rope.attention.softmax import SoftmaxRoPEAttention
from linear_rope.ops.decay import fading
from linear_rope.ops.linear.linear_attention import linear_attention
from linear_rope.positions.alibi import alibi_bias
from linear_rope.positions.rotary import apply_rope, rotate
from linear_rope.positions.tokens import Positions, align_positions, token_positions
from linear_rope.positions.xpos import scaled_by_distance
from linear_rope.precision import full_precision
from linear_rope.small_calls import cosine_and_sine


class AttentionMatrices(NamedTuple):
    """Attributes:
    weights: (B, H, N, K) what multiplies the values.
    kernel: (B, H, N, K) φ(q)ᵀφ(k) before a rotation after the map, each row divided by its sum.
    softmax: (B, H, N, K) exact softmax of the same q and k.
    denominator: (B, H, N) what the quotient divides by, relative to the largest features; or None.
    visible: (B, 1, N, K) bool; False for a key that a query must not see, and for all keys of a padded query.
    """

    weights: Tensor
    kernel: Tensor
    softmax: Tensor
    denominator: Tensor | None
    visible: Tensor


def check_arguments(
    attention: RoPEAttention, x: Tensor, key_padding_mask: Tensor | None, context: Tensor | None
) -> None:
    """Raises ValueError for what :func:`linear_rope.diagnostics.diagnose` does not take."""
    if not isinstance(attention, LinearRoPEAttention | SoftmaxRoPEAttention):
        raise ValueError(
            f"attention is a {type(attention).__name__}; give a LinearRoPEAttention or a SoftmaxRoPEAttention "
            "(diagnose_model takes a whole model)"
        )
    attention.check_inputs(x, context, key_padding_mask)


def attention_matrices(
    attention: RoPEAttention,
    x: Tensor,
    key_padding_mask: Tensor | None,
    positions: Positions | None,
    context: Tensor | None,
) -> AttentionMatrices:
    """The matrices of ``attention(x, context, key_padding_mask, positions)``, in float32, or float64 if the module is.

    The arguments are those of :func:`linear_rope.diagnostics.diagnose`, checked.

    Raises:
        ValueError: no query sees a key.
    """
    with torch.no_grad(), full_precision(x.device):
        visible = _visible(attention, x, key_padding_mask, context)
        if not visible.any():
            raise ValueError("key_padding_mask is True everywhere; give one that leaves a key to see")
        projected = _projected(attention, x, key_padding_mask, context)
        q, k, angles = projected.q, projected.k, projected.angles
        q_positions, k_positions = _positions(x, key_padding_mask, positions, context)
        scaling = attention.rope_scaling

        def turned(x: Tensor, at: Tensor) -> Tensor:
            if angles is not None:
                return rotate(x, cosine_and_sine(angles).to(x.dtype))
            return apply_rope(x, at, base=attention.rope_base, scaling=scaling)

        at = (align_positions(q_positions, q), align_positions(k_positions, k))
        if attention.rope in ("before", "xpos"):
            q, k = turned(q, q_positions), turned(k, k_positions)
            scale = 1.0 if scaling is None else scaling.magnitude**2
            if isinstance(attention, LinearRoPEAttention):
                scale = attention.feature_map.score_scale(scale)
            q, k = q * scale**0.5, k * scale**0.5
        if attention.rope == "xpos":
            q, k = scaled_by_distance(q, k, *at)
        scores = q @ k.mT / attention.head_dim**0.5
        if isinstance(attention, SoftmaxRoPEAttention) and attention.alibi:
            scores = scores + alibi_bias(*at, attention.heads, dtype=q.dtype)
        if isinstance(attention, SoftmaxRoPEAttention) and attention.score_positions is not None:
            scores = q @ k.mT * attention.score_positions.scale + attention.score_positions(q, k, *at)
        between = None
        if projected.log_decay is not None:
            between = fading(projected.log_decay, q.dtype, causal=attention.causal)
            visible = visible & between.isfinite()
            scores = scores + between
        scores = scores.masked_fill(~visible, torch.finfo(q.dtype).min)
        softmax = scores.softmax(-1) * visible
        if not isinstance(attention, LinearRoPEAttention):
            largest = scores.amax(-1)
            return AttentionMatrices(softmax, softmax, softmax, (scores.logsumexp(-1) - largest).exp(), visible)
        # Attention is linear in its values: the identity as values gives the weights.
        weights = linear_attention(
            q,
            k,
            torch.eye(k.shape[-2], dtype=q.dtype, device=q.device).expand(*k.shape[:2], -1, -1),
            feature_map=attention.feature_map,
            rope="none" if attention.rope == "before" else attention.rope,
            denominator=attention.denominator,
            causal=attention.causal,
            key_padding_mask=key_padding_mask,
            positions=None if angles is not None else (q_positions, k_positions),
            rope_base=attention.rope_base,
            rope_scaling=None if attention.rope == "before" else attention.rope_scaling,
            log_decay=projected.log_decay,
            angles=angles if attention.rope == "after" else None,
            implementation="reference",
        )
        after = attention.rope == "after" and attention.denominator == "rotated"
        kernel, denominator = _kernel(
            attention,
            q,
            k,
            visible,
            between,
            (lambda q, k: (turned(q, q_positions), turned(k, k_positions))) if after else None,
        )
        return AttentionMatrices(zero_at_padding(weights, projected.padding), kernel, softmax, denominator, visible)


def _kernel(
    attention: LinearRoPEAttention,
    q: Tensor,
    k: Tensor,
    visible: Tensor,
    between: Tensor | None,
    turned: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None,
) -> tuple[Tensor, Tensor | None]:
    """The kernel's normalised rows and the denominator of the attention, whose features are ``turned``.

    ``between`` (B, H, N, K) is added to the logarithm of each pair's weight.
    """
    (q_values, _), (k_values, key_scale) = attention.feature_map.queries(q), attention.feature_map.keys(k)
    # Every key's own scale, relative to the largest that the query sees; a query's own scale cancels in its row.
    factor = visible.to(q.dtype)
    if key_scale is not None:
        scale = key_scale.mT if between is None else key_scale.mT + between
        scale = scale.masked_fill(~visible, torch.finfo(q.dtype).min)
        factor = (scale - scale.amax(-1, keepdim=True)).exp() * visible
    elif between is not None:
        factor = between.exp() * visible
    largest_query = q_values.abs().amax(-1)
    largest_key = (k_values.abs().amax(-1).unsqueeze(-2) * factor).amax(-1)

    kernel = (q_values @ k_values.mT) * factor
    row_sums = kernel.sum(-1)
    denominator: Tensor | None = row_sums
    if attention.denominator == "none":
        denominator = None
    elif turned is not None:
        rotated_q, rotated_k = turned(q_values, k_values)
        denominator = ((rotated_q @ rotated_k.mT) * factor).sum(-1)
    if denominator is not None:
        denominator = denominator / (largest_query * largest_key)
    return kernel / torch.where(row_sums == 0, 1, row_sums).unsqueeze(-1), denominator


def _projected(
    attention: RoPEAttention, x: Tensor, key_padding_mask: Tensor | None, context: Tensor | None
) -> Projected:
    """What the attention attends with: projected in the module's own dtype, then float32 or better."""
    dtype = next(attention.query.parameters()).dtype  # a wrapped projection may have no .weight
    x, source = without_padding(x.to(dtype), None if context is None else context.to(dtype), key_padding_mask)
    projected = attention.project(x, source, key_padding_mask)
    dtype = torch.promote_types(dtype, torch.float32)
    log_decay = projected.log_decay
    if log_decay is not None and key_padding_mask is not None:
        log_decay = log_decay.masked_fill(key_padding_mask[:, None], 0)
    return projected._replace(q=projected.q.to(dtype), k=projected.k.to(dtype), log_decay=log_decay)


def _positions(
    x: Tensor, key_padding_mask: Tensor | None, positions: Positions | None, context: Tensor | None
) -> tuple[Tensor, Tensor]:
    if isinstance(positions, tuple):
        return positions
    if positions is not None:
        return positions, positions
    source = x if context is None else context
    k_positions = token_positions(source.shape[1], key_padding_mask, x.device)
    return (k_positions if context is None else token_positions(x.shape[1], None, x.device)), k_positions


def _visible(attention: RoPEAttention, x: Tensor, key_padding_mask: Tensor | None, context: Tensor | None) -> Tensor:
    keys = x.shape[1] if context is None else context.shape[1]
    visible = torch.ones(x.shape[0], 1, x.shape[1], keys, dtype=torch.bool, device=x.device)
    if attention.causal:
        visible = visible.tril()
    if key_padding_mask is not None:
        visible = visible & ~key_padding_mask[:, None, None, :]
        if context is None:
            visible = visible & ~key_padding_mask[:, None, :, None]
    return visible
