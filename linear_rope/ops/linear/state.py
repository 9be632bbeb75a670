"""The running sums over keys, a state of constant size (Katharopoulos et al. 2020, eq. 16 to 20)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from linear_rope.ops.decay import of_features
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.definition import Sums, attention_output
from linear_rope.states import savable


@savable("linear_rope.functional.recurrent.State")
class State(NamedTuple):
    """The running sums over the keys seen so far.

    Attributes:
        memory: (B, H, M, D), Σ_j exp(g_j + L − L_j − c) k_j v_jᵀ, L being that of the last key; two rows have the L of
            their pair where decays are of pairs.
        key_sum: (B, H, M), Σ_j exp(g_j + L − L_j − c) k'_j, for the denominator; None without one.
        stabiliser: (B, H, 1), c, the largest of these exponents; None without key scales.
    """

    memory: Tensor
    key_sum: Tensor | None
    stabiliser: Tensor | None


def empty_state(call: Call) -> State:
    """The state before the first key of a call of features."""
    batch, heads, _, features = call.k.shape
    stabiliser = None
    if call.key_scale is not None:
        stabiliser = torch.full_like(call.key_scale[..., :1], torch.finfo(call.k.dtype).min)
    key_sum = call.k.new_zeros(batch, heads, features) if call.has_denominator else None
    return State(call.k.new_zeros(batch, heads, features, call.v.shape[-1]), key_sum, stabiliser)


def add_key(state: State, call: Call, index: int) -> State:
    """The state faded by token ``index``, with its key added."""
    k, v = call.k[:, :, index], call.v[:, :, index]
    denominator_k = k if call.denominator_k is None else call.denominator_k[:, :, index]
    memory, key_sum, stabiliser = state
    log_kept = None if call.log_decay is None else call.log_decay[:, :, index, None]
    if stabiliser is not None and call.key_scale is not None:
        key_scale = call.key_scale[:, :, index, None]
        before = stabiliser if log_kept is None else stabiliser + log_kept
        stabiliser = torch.maximum(before, key_scale).detach()
        log_kept, factor = before - stabiliser, (key_scale - stabiliser).exp().to(k.dtype)
        k, denominator_k = k * factor, denominator_k * factor
    if log_kept is not None:
        kept = log_kept.exp().to(k.dtype)
        memory = memory * kept.unsqueeze(-1)
        key_sum = None if key_sum is None else key_sum * kept
    if call.pair_decay is not None and call.own_decay is not None:
        memory = memory * of_features(call.pair_decay[:, :, index], k.shape[-1]).unsqueeze(-1)
        key_sum = None if key_sum is None else key_sum * of_features(call.own_decay[:, :, index], k.shape[-1])
    memory = memory + k.unsqueeze(-1) * v.unsqueeze(-2)
    return State(memory, None if key_sum is None else key_sum + denominator_k, stabiliser)


def sum_keys(call: Call, log_kept: Tensor | None = None) -> State:
    """The state after all keys, in one matrix product; what a recurrence over them ends with.

    Args:
        call: of features, without decay.
        log_kept: (B, H, K), the logarithm of what is left of each key; None for all of it.
    """
    k, denominator_k, stabiliser = call.k, call.denominator_k, None
    exponent = log_kept
    if call.key_scale is not None:
        exponent = call.key_scale if log_kept is None else call.key_scale + log_kept
        # Finite also where no key is left, so that nothing is −∞ − (−∞).
        stabiliser = exponent.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(k.dtype).min)
        exponent = exponent - stabiliser
    if exponent is not None:
        factor = exponent.exp().to(k.dtype).unsqueeze(-1)
        k = k * factor
        denominator_k = None if denominator_k is None else denominator_k * factor
    key_sum = None
    if call.has_denominator:
        key_sum = (k if denominator_k is None else denominator_k).sum(-2)
    return State(k.mT @ call.v, key_sum, stabiliser)


def by_groups(call: Call, groups: int) -> Call:
    """A call of features (B, H, ...) whose keys are alike in each of G groups of neighbouring heads, as one of a head a
    group: the queries of the group's heads are one behind the other, (B, G, H / G·N, ...).
    """
    heads = call.q.shape[1]
    if heads == groups:
        return call
    of_keys = ("k", "v", "denominator_k", "key_scale", "log_decay", "pair_decay", "denominator_decay")
    found: dict[str, Any] = {}
    for name in ("q", "denominator_q", "query_scale", *of_keys):
        if (x := getattr(call, name)) is not None:
            x = x.unflatten(1, (groups, -1))
            found[name] = x[:, :, 0] if name in of_keys else x.flatten(2, 3)
    return call._replace(**found)


def of_heads(y: Tensor, heads: int) -> Tensor:
    """Outputs of such a call, (B, G, H / G·N, Dv) → (B, H, N, Dv)."""
    return y if y.shape[1] == heads else y.unflatten(2, (heads // y.shape[1], -1)).flatten(1, 2)


def read_state(call: Call, state: State) -> Sums:
    """The sums of queries that see exactly the keys in ``state``."""
    denominator = None
    if state.key_sum is not None:
        q = call.q if call.denominator_q is None else call.denominator_q
        denominator = (q @ state.key_sum.unsqueeze(-1)).squeeze(-1)
    return call.q @ state.memory, denominator, state.stabiliser


def output_of_state(call: Call, state: State) -> Tensor:
    """The output (B, H, N, Dv) of such queries."""
    return attention_output(read_state(call, state), call.query_scale)


def recurrent(call: Call) -> Sums:
    """The sums of :mod:`linear_rope.ops.linear.definition` by a loop over positions."""
    state, rows = empty_state(call), []
    for index in range(call.k.shape[-2]):
        state = add_key(state, call, index)
        if call.causal:
            one = slice(index, index + 1)
            own = None if call.denominator_q is None else call.denominator_q[:, :, one]
            rows.append(read_state(call._replace(q=call.q[:, :, one], denominator_q=own), state))
    if not call.causal:
        return read_state(call, state)
    numerators, denominators, scales = zip(*rows, strict=True)
    return (
        torch.cat(numerators, dim=-2),
        torch.cat(denominators, dim=-1) if call.has_denominator else None,
        torch.cat(scales, dim=-1) if call.key_scale is not None else None,
    )
