"""From queries and keys to the features that are summed: the map, padding, and the rotation of RoFormer eq. 19."""

from typing import Literal

import torch
from torch import Tensor

from linear_rope.features.base import Features, FormulaCall
from linear_rope.ops.linear.call import Call
from linear_rope.positions.rotary import rotate
from linear_rope.tracing import has_tangent

Rope = Literal["after", "before", "none"]
Denominator = Literal["unrotated", "rotated", "none", "abs"]
PairDenominator = Literal["same", "head"]


def rotated_features(call: Call, q: Features, k: Features, v: Tensor) -> Call:
    """What is summed, from mapped queries and keys: the numerator's features turned, those of the denominator not.

    What ``call`` says of padding, scales, rotations and decay holds; ``v`` is in the dtype of the features.
    """
    (q_values, query_scale), (k_values, key_scale) = q, k
    query_scale = call.query_scale if query_scale is None else query_scale.squeeze(-1)
    key_scale = call.key_scale if key_scale is None else key_scale.squeeze(-1)
    if call.padding is not None:
        k_values = k_values.masked_fill(call.padding, 0)
        if key_scale is not None:
            key_scale = key_scale.masked_fill(call.padding.squeeze(-1), torch.finfo(k_values.dtype).min)
    denominator_q, denominator_k = call.denominator_q, call.denominator_k
    if call.q_rotation is not None and call.k_rotation is not None:
        if call.denominator == "unrotated":
            denominator_q, denominator_k = q_values, k_values
        q_values, k_values = _turned(q_values, call.q_rotation), _turned(k_values, call.k_rotation)
    elif call.denominator_decay is not None and denominator_q is None:
        denominator_q, denominator_k = q_values, k_values  # which fade by themselves
    return Call(
        q_values,
        k_values,
        v,
        denominator_q,
        denominator_k,
        query_scale,
        key_scale,
        call.log_decay,
        call.pair_decay,
        call.denominator_decay,
        denominator=call.denominator,
        causal=call.causal,
    )


def mapped(call: Call) -> Call:
    """The call of a feature map's features, differentiated by autograd.

    Without ``causal``, keys that fade have a scale whatever the map: all that a query at padding sees, which has no key
    of its own, can have faded beyond what float32 holds.
    """
    feature_map, dtype = call.feature_map, call.dtype
    assert feature_map is not None
    call = inputs_turned(call)
    q, query_scale = feature_map.queries(call.q.to(dtype))
    k, key_scale = feature_map.keys(call.k.to(dtype))
    if key_scale is None and call.log_decay is not None and not call.causal:
        key_scale = torch.zeros_like(k[..., :1])
    if key_scale is not None and call.log_decay is not None:
        # Sums of decays are as large as a sequence is long.
        key_scale = key_scale.to(call.log_decay.dtype)
    return rotated_features(call, Features(q, query_scale), Features(k, key_scale), call.v.to(dtype))


def for_operator(call: Call) -> Call:
    """What the operator takes: the inputs of a map that it can differentiate, or else the features."""
    if call.feature_map is None:
        return call
    formula = _formula(call)
    if formula is None:
        return mapped(call)
    call = inputs_turned(call)
    (name, constant, numbers), q_rotation, k_rotation = formula, call.q_rotation, call.k_rotation
    rotations = {"q_rotation": _batch_first(q_rotation), "k_rotation": _batch_first(k_rotation)}
    return call.changed(feature_map=None, formula=name, constant=constant, numbers=numbers, **rotations)


def inputs_turned(call: Call) -> Call:
    """The call without a rotation of what is mapped."""
    if not call.turns_inputs or call.q_rotation is None or call.k_rotation is None:
        return call
    q, k = rotate(call.q.to(call.dtype), call.q_rotation), rotate(call.k.to(call.dtype), call.k_rotation)
    return call.changed(q=q, k=k, q_rotation=None, k_rotation=None, turns_inputs=False)


def _formula(call: Call) -> FormulaCall | None:
    """The map's derivative by hand, where all else that has a gradient has one too."""
    assert call.feature_map is not None
    if not call.turns_inputs and any(
        x is not None and (x.requires_grad or (x.dim() == 5 and x.shape[1] > 1))
        for x in (call.q_rotation, call.k_rotation)
    ):
        return None
    if has_tangent(call.q, call.k, call.v, call.q_rotation, call.k_rotation, call.log_decay, call.pair_decay):
        return None  # what differentiates in forward mode may differentiate that in reverse
    return call.feature_map.formula()


def _batch_first(rotation: Tensor | None) -> Tensor | None:
    return rotation if rotation is None or rotation.dim() == 5 else rotation[None, None]


def _turned(x: Tensor, rotation: Tensor) -> Tensor:
    if x.shape[-1] != 2 * rotation.shape[-2]:
        raise ValueError(
            f"the feature map says that it has {2 * rotation.shape[-2]} features, but gave {x.shape[-1]}; "
            "make its num_features what it returns"
        )
    return rotate(x, rotation)
