"""The N × K matrices of one attention call. Quadratic in memory, and dense on purpose: for looking at.

Axis names: B batch, H heads, N queries, K keys, D head width, M features.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from linear_rope.attention.linear import LinearRoPEAttention
from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.attention.projected import Projected, zero_at_padding
from linear_rope.attention.softmax import SoftmaxRoPEAttention
from linear_rope.ops.decay import fading
from linear_rope.ops.linear.linear_attention import linear_attention
from linear_rope.positions.alibi import alibi_bias
from linear_rope.positions.rotary import Turn, rotate, rotation_at
from linear_rope.positions.tokens import Positions, aligned_positions
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


def attention_matrices(
    attention: RoPEAttention,
    x: Tensor,
    key_padding_mask: Tensor | None = None,
    positions: Positions | None = None,
    context: Tensor | None = None,
) -> AttentionMatrices:
    """The matrices of ``attention(x, context, key_padding_mask, positions)``, in float32, or float64 if the module is.

    Raises:
        ValueError: what :func:`linear_rope.diagnostics.diagnose` does not take.
    """
    if not isinstance(attention, LinearRoPEAttention | SoftmaxRoPEAttention):
        raise ValueError(
            f"attention is a {type(attention).__name__}; give a LinearRoPEAttention or a SoftmaxRoPEAttention "
            "(diagnose_model takes a whole model)"
        )
    attention.check_inputs(x, context, key_padding_mask)
    with torch.no_grad(), full_precision(x.device):
        visible = _visible(attention, x, key_padding_mask, context)
        if not visible.any():
            raise ValueError("key_padding_mask is True everywhere; give one that leaves a key to see")
        dtype = next(attention.query.parameters()).dtype  # a wrapped projection may have no .weight
        inputs = x.to(dtype), None if context is None else context.to(dtype)
        projected = attention.project(*inputs, key_padding_mask, positions)
        wide, log_decay = torch.promote_types(dtype, torch.float32), projected.log_decay
        if log_decay is not None and key_padding_mask is not None:
            log_decay = log_decay.masked_fill(key_padding_mask[:, None], 0)
        projected = projected._replace(q=projected.q.to(wide), k=projected.k.to(wide), log_decay=log_decay)
        at = aligned_positions(projected.q, projected.k, projected.positions, key_padding_mask)
        q, k = _rotated(attention, projected, at)
        between = None
        if projected.log_decay is not None:
            between = fading(projected.log_decay, q.dtype, causal=attention.causal)
            visible = visible & between.isfinite()
        scores = _scores(attention, q, k, at)
        scores = (scores if between is None else scores + between).masked_fill(~visible, torch.finfo(q.dtype).min)
        softmax = scores.softmax(-1) * visible
        if not isinstance(attention, LinearRoPEAttention):
            largest = scores.amax(-1)
            return AttentionMatrices(softmax, softmax, softmax, (scores.logsumexp(-1) - largest).exp(), visible)
        after = attention.rope == "after"
        q_at, k_at = (each if each.dim() == 1 else each[:, 0] for each in at)
        # Attention is linear in its values: the identity as values gives the weights.
        weights = linear_attention(
            q,
            k,
            torch.eye(k.shape[-2], dtype=q.dtype, device=q.device).expand(*k.shape[:2], -1, -1),
            feature_map=attention.feature_map,
            rope="after" if after else "none",
            denominator=attention.denominator,
            causal=attention.causal,
            key_padding_mask=key_padding_mask,
            positions=None if projected.angles is not None else (q_at, k_at),
            rope_base=attention.rope_base,
            rope_scaling=attention.rope_scaling if after else None,
            log_decay=projected.log_decay,
            angles=projected.angles if after else None,
            implementation="reference",
        )
        turned = None
        if after and attention.denominator == "rotated":
            turned = partial(_turned, attention, projected, at=at)
        kernel, denominator = _kernel(attention, q, k, visible, between, turned)
        return AttentionMatrices(zero_at_padding(weights, projected.padding), kernel, softmax, denominator, visible)


def _turned(
    attention: RoPEAttention, projected: Projected, q: Tensor, k: Tensor, at: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Queries and keys, or their features, turned by the angles of the tokens or else of their positions."""
    if projected.angles is not None:
        rotation = cosine_and_sine(projected.angles).to(q.dtype)
        return rotate(q, rotation), rotate(k, rotation)
    turn = Turn(q.shape[-1], attention.rope_base, attention.rope_scaling)
    q_rotation, k_rotation = (rotation_at(positions, turn, q.dtype) for positions in at)
    return rotate(q, q_rotation), rotate(k, k_rotation)


def _rotated(attention: RoPEAttention, projected: Projected, at: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The queries and keys whose products are the scores."""
    q, k = projected.q, projected.k
    if attention.rope not in ("before", "xpos"):
        return q, k
    q, k = _turned(attention, projected, q, k, at)
    scale = 1.0 if attention.rope_scaling is None else attention.rope_scaling.magnitude**2
    if isinstance(attention, LinearRoPEAttention):
        scale = attention.feature_map.score_scale(scale)
    q, k = q * scale**0.5, k * scale**0.5
    return scaled_by_distance(q, k, *at) if attention.rope == "xpos" else (q, k)


def _scores(attention: RoPEAttention, q: Tensor, k: Tensor, at: tuple[Tensor, Tensor]) -> Tensor:
    """What softmax is of, (B, H, N, K), without a decay."""
    positions = getattr(attention, "score_positions", None)
    if positions is not None:
        return q @ k.mT * positions.scale + positions(q, k, *at)
    scores = q @ k.mT / attention.head_dim**0.5
    return scores + alibi_bias(*at, attention.heads, dtype=q.dtype) if getattr(attention, "alibi", False) else scores


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
