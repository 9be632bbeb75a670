"""Every query sees every key, in time and memory linear in the length."""

from collections.abc import Callable

import torch
from torch import Tensor

from linear_rope.ops.decay import of_features
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.definition import Sums, attention_output, quotient
from linear_rope.ops.linear.operator import after, attend, has_both_ways
from linear_rope.ops.linear.rotated_features import for_operator, mapped
from linear_rope.ops.linear.state import State, output_of_state, recurrent, sum_keys
from linear_rope.positions.segments import cut
from linear_rope.tracing import has_tangent, is_watched

Pass = Callable[[Call], Sums]
"""A causal pass over a call of features: the output in place of the numerator, with denominators and scales."""


def both_ways(call: Call, implementation: str = "auto", segments: Tensor | None = None) -> Tensor:
    """The output where every query sees every key, of its segment (B, N) if there are any."""
    if segments is not None and call.log_decay is None:
        if call.q.numel() and not call.q.is_meta and not is_watched():
            return per_segment(call, segments, lambda rows: both_ways(rows, implementation))
        call = call._replace(log_decay=cut(None, segments, call.q.shape[1], call.dtype))
    if call.log_decay is None and (implementation == "triton" or _is_plain(call, implementation)):
        of_kernel = for_operator(call)._replace(implementation=implementation)
        if has_both_ways(of_kernel):
            return attend(of_kernel, implementation).output
    call = mapped(call)
    if call.log_decay is None:
        return output_of_state(call, sum_keys(call))
    return two_passes(call, one_pass(None, implementation))


def _is_plain(call: Call, implementation: str) -> bool:
    """Whether what sees both ways is not better computed in PyTorch.

    Compilers fuse that, and function transforms differentiate it as often as one likes.
    """
    is_plain = implementation != "chunked" and not is_watched()
    return is_plain and not has_tangent(call.q, call.k, call.v, call.q_rotation, call.k_rotation)


def one_pass(before: State | None, implementation: str) -> Pass:
    """A causal pass after the state ``before``."""

    def run(call: Call) -> Sums:
        result = attend(after(before, call), implementation)
        denominator, scale = (x if x.numel() else None for x in (result.denominator, result.scale))
        return result.output, denominator, scale

    return run


def recurrent_pass(call: Call) -> Sums:
    """The same by a loop over positions."""
    sums = recurrent(call)
    return attention_output(sums, call.query_scale), *sums[1:]


def two_passes(call: Call, attend: Pass, attend_from_the_end: Pass | None = None) -> Tensor:
    """The output with decay, by |L_i − L_j|: the keys up to each query, then those after it, from the end.

    Keys have a scale, so that each pass sums relative to what is left of the nearest keys. The second pass is
    ``attend``'s too, unless another is given.
    """
    call = call._replace(causal=True)
    output, divisor, denominator, scale = _divided(call, attend)
    second = _divided(call, lambda call: (attend_from_the_end or attend)(_from_the_end(call)))
    later_output, later_divisor, later_denominator, later_scale = (None if x is None else x.flip(2) for x in second)
    assert later_output is not None
    if divisor is None or later_divisor is None:
        return output + later_output
    assert scale is not None
    assert later_scale is not None
    largest = torch.maximum(scale, later_scale)
    share, later_share = (
        x * (own - largest).exp().to(x.dtype) for x, own in ((divisor, scale), (later_divisor, later_scale))
    )
    numerator = output * share.unsqueeze(-1) + later_output * later_share.unsqueeze(-1)
    if denominator is not None and later_denominator is not None:
        share, later_share = (
            x * (own - largest).exp().to(x.dtype) for x, own in ((denominator, scale), (later_denominator, later_scale))
        )
    return quotient(numerator, share + later_share)


def _divided(call: Call, attend: Pass) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The output, what it was divided by, the denominator if that is another, and c_i."""
    output, denominator, scale = attend(call)
    if call.denominator_decay is None:
        return output, denominator, None, scale
    # Where the mean of the pairs has faded to nothing some of them have not, and no quotient holds what they sum.
    output, divisor, _ = attend(call._replace(denominator_decay=None))
    return output, divisor, denominator, scale


def _from_the_end(call: Call) -> Call:
    """The sequence backwards, with every key one place later, so that a query sees the keys after it only.

    Between query i and key j > i lie the decays of the tokens i + 1 to j; that of j itself goes to its key.
    """
    assert call.log_decay is not None
    assert call.key_scale is not None
    key_scale, smallest = call.key_scale + call.log_decay, torch.finfo(call.k.dtype).min
    k, denominator_k = call.k, call.denominator_k
    if call.pair_decay is not None:
        k = k * of_features(call.pair_decay, k.shape[-1])
    if call.own_decay is not None and denominator_k is not None:
        denominator_k = denominator_k * of_features(call.own_decay, k.shape[-1])
    # A key behind a reset is none: where no query sees another, its scale, however small, would be the largest.
    kept = (key_scale > smallest).to(call.k.dtype).unsqueeze(-1)

    def turned(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.flip(2)

    return call._replace(
        q=call.q.flip(2),
        k=_later(k * kept),
        v=_later(call.v),
        denominator_q=turned(call.denominator_q),
        denominator_k=None if denominator_k is None else _later(denominator_k * kept),
        query_scale=turned(call.query_scale),
        key_scale=_later(key_scale.clamp(min=smallest), smallest),
        log_decay=_later(call.log_decay),
        pair_decay=None if call.pair_decay is None else _later(call.pair_decay),
        denominator_decay=None if call.denominator_decay is None else _later(call.denominator_decay),
    )


def _later(x: Tensor, first: float = 0.0) -> Tensor:
    """Backwards, one place later, ``first`` in the first place."""
    # No slice of N − 1: compilers would make another graph for two tokens.
    is_first = torch.arange(x.shape[2], device=x.device).view(-1, *[1] * (x.dim() - 3)) == 0
    return x.flip(2).roll(1, 2).masked_fill(is_first, first)


def per_segment(call: Call, segments: Tensor, attend: Callable[[Call], Tensor]) -> Tensor:
    """What ``attend`` gives for each segment of packed sequences by itself, (B, H, N, Dv).

    Segments are rows of a call, filled up to the longest, which is less than twice as long as the shortest.
    """
    batch, length = call.q.shape[0], call.q.shape[2]
    number = segments + torch.cat((segments.new_zeros(1), segments[:-1, -1] + 1)).cumsum(0).unsqueeze(-1)
    counts = number.flatten().bincount()
    ends = counts.cumsum(0)
    parts, places = [], []
    sizes = torch.frexp(counts.double()).exponent
    for size in sizes.unique():
        of_size = sizes == size
        count = counts[of_size].unsqueeze(-1)
        within = torch.arange(int(count.max()), device=segments.device)
        there = within < count
        index = ((ends[of_size].unsqueeze(-1) - count) + within).clamp(max=batch * length - 1)
        y = attend(_rows(call, index, there))
        parts.append(y.transpose(1, 2)[there])
        places.append(index[there])
    return torch.cat(parts)[torch.cat(places).argsort()].unflatten(0, (batch, length)).transpose(1, 2)


def _rows(call: Call, index: Tensor, there: Tensor) -> Call:
    """The tokens ``index`` (S, L) of all sequences, padding where ``there`` is False."""
    batch, length = call.q.shape[0], call.q.shape[2]

    def taken(x: Tensor) -> Tensor:
        """(B, H, N, ...) → (S, H, L, ...)."""
        return x.transpose(1, 2).flatten(0, 1)[index].transpose(1, 2)

    def rotation(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        x = x[None, None] if x.dim() == 3 else x
        return taken(x.expand(batch, -1, length, -1, -1))

    padding = ~there[:, None, :, None]
    if call.padding is not None:
        padding = padding | taken(call.padding)
    return call._replace(
        q=taken(call.q),
        k=taken(call.k).masked_fill(padding, 0),
        v=taken(call.v).masked_fill(padding, 0),
        padding=padding,
        q_rotation=rotation(call.q_rotation),
        k_rotation=rotation(call.k_rotation),
    )
