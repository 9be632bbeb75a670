"""Every query sees every key, in time and memory linear in the length."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from linear_rope.ops.linear.recurrent import State, read_state
from linear_rope.ops.linear.terms import Sums, Terms, quotient


def bidirectional(terms: Terms) -> Sums:
    """The sums of :mod:`linear_rope.ops.linear.terms` without a causal mask and without decay: one state for all."""
    return read_state(terms, sum_keys(terms))


def sum_keys(terms: Terms, log_kept: Tensor | None = None) -> State:
    """The state after all keys, in one matrix product; what a recurrence over them ends with.

    Args:
        log_kept: (B, H, K), the logarithm of what is left of each key; None for all of it.
    """
    k, denominator_k, stabiliser = terms.k, terms.denominator_k, None
    exponent = log_kept
    if terms.key_scale is not None:
        exponent = terms.key_scale if log_kept is None else terms.key_scale + log_kept
        # Finite also where no key is left, so that nothing is −∞ − (−∞).
        stabiliser = exponent.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(k.dtype).min)
        exponent = exponent - stabiliser
    if exponent is not None:
        factor = exponent.exp().to(k.dtype).unsqueeze(-1)
        k = k * factor
        denominator_k = None if denominator_k is None else denominator_k * factor
    normaliser = None
    if terms.has_denominator:
        normaliser = (k if denominator_k is None else denominator_k).sum(-2)
    return State(k.mT @ terms.v, normaliser, stabiliser)


class Attended(NamedTuple):
    """One causal pass.

    Attributes:
        output: (B, H, N, D).
        total: (B, H, N) the denominators, or None.
        scale: (B, H, N) c_i, or None.
    """

    output: Tensor
    total: Tensor | None
    scale: Tensor | None


def two_passes(
    terms: Terms, attend: Callable[[Terms], Attended], attend_from_the_end: Callable[[Terms], Attended] | None = None
) -> Tensor:
    """The output with decay, by |L_i − L_j|: the keys up to each query, then those after it, from the end.

    Keys have a scale, so that each pass sums relative to what is left of the nearest keys. The second pass is
    ``attend``'s too, unless another is given.
    """
    first, second = attend(terms), (attend_from_the_end or attend)(_from_the_end(terms))
    second = Attended(*(None if x is None else x.flip(2) for x in second))  # type: ignore[arg-type]
    if first.total is None or second.total is None:
        return first.output + second.output
    assert first.scale is not None
    assert second.scale is not None
    scale = torch.maximum(first.scale, second.scale)
    shares = [
        total * (own - scale).exp().to(total.dtype)
        for total, own in ((first.total, first.scale), (second.total, second.scale))
    ]
    numerator = first.output * shares[0].unsqueeze(-1) + second.output * shares[1].unsqueeze(-1)
    return quotient(numerator, shares[0] + shares[1])


def _from_the_end(terms: Terms) -> Terms:
    """The sequence backwards, with every key one place later, so that a query sees the keys after it only.

    Between query i and key j > i lie the decays of the tokens i + 1 to j; that of j itself goes to its key.
    """
    assert terms.log_decay is not None
    assert terms.key_scale is not None
    of_keys = {"k": terms.k, "denominator_k": terms.denominator_k, "v": terms.v, "log_decay": terms.log_decay}
    key_scale, smallest = terms.key_scale + terms.log_decay, torch.finfo(terms.k.dtype).min
    # A key behind a reset is none: where no query sees another, its scale, however small, would be the largest.
    kept = (key_scale > smallest).to(terms.k.dtype).unsqueeze(-1)
    key_scale = _later(key_scale.clamp(min=smallest), smallest)
    of_keys |= {name: x * kept for name, x in of_keys.items() if x is not None and name in ("k", "denominator_k")}
    later = {name: None if x is None else _later(x) for name, x in of_keys.items()}
    of_queries = {
        name: None if x is None else x.flip(2)
        for name, x in (("q", terms.q), ("denominator_q", terms.denominator_q), ("query_scale", terms.query_scale))
    }
    return terms._replace(key_scale=key_scale, **later, **of_queries)  # type: ignore[arg-type]


def _later(x: Tensor, first: float = 0.0) -> Tensor:
    """Backwards, one place later, ``first`` in the first place."""
    # No slice of N − 1: compilers would make another graph for two tokens.
    is_first = torch.arange(x.shape[2], device=x.device).view(-1, *[1] * (x.dim() - 3)) == 0
    return x.flip(2).roll(1, 2).masked_fill(is_first, first)
