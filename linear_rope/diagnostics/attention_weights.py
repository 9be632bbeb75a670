"""The N × K matrices of one attention call. Quadratic in memory, and dense on purpose: for looking at.

Axis names: B batch, H heads, N queries, K keys, D head width, M features.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from linear_rope.attention.linear import LinearRoPEAttention
from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.attention.projected import zero_at_padding
from linear_rope.attention.softmax import SoftmaxRoPEAttention
from linear_rope.ops.decay import fading
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.definition import attention_output, reference
from linear_rope.ops.linear.rotated_features import inputs_turned, mapped
from linear_rope.positions.segments import segments_of
from linear_rope.positions.tokens import Positions
from linear_rope.precision import full_precision


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
    segment_ids: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> AttentionMatrices:
    """The matrices of ``attention``'s own call with what follows, in float32, or float64 if the module is.

    Raises:
        ValueError: what :func:`linear_rope.diagnostics.diagnose` does not take.
    """
    if not isinstance(attention, LinearRoPEAttention | SoftmaxRoPEAttention):
        raise ValueError(
            f"attention is a {type(attention).__name__}; give a LinearRoPEAttention or a SoftmaxRoPEAttention "
            "(diagnose_model takes a whole model)"
        )
    attention.check_inputs(x, context, key_padding_mask)
    segments = segments_of(segment_ids, cu_seqlens, x, key_padding_mask, context)
    with torch.no_grad(), full_precision(x.device):
        visible = _visible(attention, x, key_padding_mask, context)
        if not visible.any():
            raise ValueError("key_padding_mask is True everywhere; give one that leaves a key to see")
        dtype = next(attention.query.parameters()).dtype  # a wrapped projection may have no .weight
        inputs = x.to(dtype), None if context is None else context.to(dtype)
        projected = attention.project(*inputs, key_padding_mask, positions, segments=segments)
        wide = torch.promote_types(dtype, torch.float32)
        projected = projected._replace(q=projected.q.to(wide), k=projected.k.to(wide))
        if isinstance(attention, LinearRoPEAttention):
            call = attention.prepared(projected)
            turned = inputs_turned(call)
            scores = turned.q @ turned.k.mT / attention.head_dim**0.5
            if call.log_decay is not None:
                scores = scores + fading(call.log_decay, scores.dtype, causal=attention.causal)
        else:
            scores = attention.scores(projected)
        visible = visible & ~scores.isneginf()
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        softmax = scores.softmax(-1) * visible
        if isinstance(attention, SoftmaxRoPEAttention):
            denominator = (scores.logsumexp(-1) - scores.amax(-1)).exp()
            return AttentionMatrices(softmax, softmax, softmax, denominator, visible)
        kernel, relative = _of_features(call)
        weights, kernel = (zero_at_padding(x, projected.padding) for x in (attention.weights(projected), kernel))
        return AttentionMatrices(weights, kernel, softmax, relative, visible)


def _of_features(call: Call) -> tuple[Tensor, Tensor | None]:
    """The rows of linear attention's kernel, and its denominator relative to the largest features."""
    # Attention is linear in its values: the identity as values gives the weights.
    keys = call.k.shape[-2]
    identity = torch.eye(keys, dtype=call.dtype, device=call.k.device).expand(*call.k.shape[:2], -1, -1)
    plain = call if call.turns_inputs else call._replace(q_rotation=None, k_rotation=None)
    plain = mapped(plain._replace(denominator="unrotated"))._replace(v=identity)
    denominator = reference(mapped(call))[1]
    if denominator is not None:
        of_head = plain._replace(pair_decay=None, denominator_decay=None)
        of_keys = of_head._replace(q=torch.ones_like(plain.q[..., :1]), k=plain.k.abs().amax(-1, keepdim=True))
        denominator = denominator / (plain.q.abs().amax(-1) * reference(of_keys)[0].amax(-1))
    return attention_output(reference(plain), None), denominator


def _visible(attention: RoPEAttention, x: Tensor, key_padding_mask: Tensor | None, context: Tensor | None) -> Tensor:
    keys = x.shape[1] if context is None else context.shape[1]
    visible = torch.ones(x.shape[0], 1, x.shape[1], keys, dtype=torch.bool, device=x.device)
    visible = visible.tril() if attention.causal else visible
    if key_padding_mask is not None:
        visible = visible & ~key_padding_mask[:, None, None, :]
        if context is None:
            visible = visible & ~key_padding_mask[:, None, :, None]
    return visible
