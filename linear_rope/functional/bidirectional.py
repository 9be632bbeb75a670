"""Every query sees every key: one state for all, in time and memory linear in the length."""

from linear_rope.functional.recurrent import State, read_state
from linear_rope.functional.terms import Sums, Terms


def bidirectional(terms: Terms) -> Sums:
    """The sums of :mod:`linear_rope.functional.terms` without a causal mask."""
    return read_state(terms, sum_keys(terms))


def sum_keys(terms: Terms) -> State:
    """The state after all keys, in one matrix product; what a recurrence over them ends with."""
    k, denominator_k, stabiliser = terms.k, terms.denominator_k, None
    if terms.key_scale is not None:
        stabiliser = terms.key_scale.amax(-1, keepdim=True)
        factor = (terms.key_scale - stabiliser).exp().unsqueeze(-1)
        k = k * factor
        denominator_k = None if denominator_k is None else denominator_k * factor
    normaliser = None
    if terms.has_denominator:
        normaliser = (k if denominator_k is None else denominator_k).sum(-2)
    return State(k.mT @ terms.v, normaliser, stabiliser)
