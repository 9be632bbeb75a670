"""One position at a time, with a state of constant size (Katharopoulos et al. 2020, eq. 16 to 20)."""

from typing import NamedTuple

import torch
from torch import Tensor

from linear_rope.ops.linear.terms import Sums, Terms
from linear_rope.states import savable


@savable
class State(NamedTuple):
    """The running sums over the keys seen so far.

    Attributes:
        memory: (B, H, M, D), Σ_j exp(g_j + L − L_j − c) k_j v_jᵀ, L being that of the last key.
        normaliser: (B, H, M), Σ_j exp(g_j + L − L_j − c) k'_j; None without a denominator.
        stabiliser: (B, H, 1), c, the largest of these exponents; None without key scales.
    """

    memory: Tensor
    normaliser: Tensor | None
    stabiliser: Tensor | None


def empty_state(terms: Terms) -> State:
    """The state before the first key."""
    batch, heads, _, features = terms.k.shape
    stabiliser = None
    if terms.key_scale is not None:
        stabiliser = torch.full_like(terms.key_scale[..., :1], torch.finfo(terms.k.dtype).min)
    normaliser = terms.k.new_zeros(batch, heads, features) if terms.has_denominator else None
    return State(terms.k.new_zeros(batch, heads, features, terms.v.shape[-1]), normaliser, stabiliser)


def add_key(state: State, terms: Terms, index: int) -> State:
    """The state faded by token ``index`` of ``terms``, with its key added."""
    k, v = terms.k[:, :, index], terms.v[:, :, index]
    denominator_k = k if terms.denominator_k is None else terms.denominator_k[:, :, index]
    memory, normaliser, stabiliser = state
    log_kept = None if terms.log_decay is None else terms.log_decay[:, :, index, None]
    if stabiliser is not None and terms.key_scale is not None:
        key_scale = terms.key_scale[:, :, index, None]
        before = stabiliser if log_kept is None else stabiliser + log_kept
        stabiliser = torch.maximum(before, key_scale).detach()
        log_kept, factor = before - stabiliser, (key_scale - stabiliser).exp().to(k.dtype)
        k, denominator_k = k * factor, denominator_k * factor
    if log_kept is not None:
        kept = log_kept.exp().to(k.dtype)
        memory = memory * kept.unsqueeze(-1)
        normaliser = None if normaliser is None else normaliser * kept
    memory = memory + k.unsqueeze(-1) * v.unsqueeze(-2)
    normaliser = None if normaliser is None else normaliser + denominator_k
    return State(memory, normaliser, stabiliser)


def read_state(terms: Terms, state: State) -> Sums:
    """The sums of queries that see exactly the keys in ``state``."""
    denominator = None
    if state.normaliser is not None:
        q = terms.q if terms.denominator_q is None else terms.denominator_q
        denominator = (q @ state.normaliser.unsqueeze(-1)).squeeze(-1)
    return Sums(terms.q @ state.memory, denominator, state.stabiliser)


def recurrent(terms: Terms, *, causal: bool) -> Sums:
    """The sums of :mod:`linear_rope.ops.linear.terms` by a loop over positions."""
    state = empty_state(terms)
    if not causal:
        for index in range(terms.k.shape[-2]):
            state = add_key(state, terms, index)
        return read_state(terms, state)
    rows = []
    for index in range(terms.k.shape[-2]):
        state = add_key(state, terms, index)
        rows.append(read_state(query_at(terms, index), state))
    numerators, denominators, scales = zip(*rows, strict=True)
    return Sums(
        torch.cat(numerators, dim=-2),
        torch.cat(denominators, dim=-1) if terms.has_denominator else None,
        torch.cat(scales, dim=-1) if terms.key_scale is not None else None,
    )


def query_at(terms: Terms, index: int) -> Terms:
    """``terms`` with the one query ``index``."""
    one = slice(index, index + 1)
    denominator_q = None if terms.denominator_q is None else terms.denominator_q[:, :, one]
    return terms._replace(q=terms.q[:, :, one], denominator_q=denominator_q)
