"""The states of the parts of a sequence, and what each process gets of them (LASP-2, arXiv 2502.07563).

One all-gather brings every process the state of each part, from which it sums those that its queries see. In the
backward pass one more brings the gradients of all those sums, of which each process sums what belongs to its own part.

Axis names: B batch, H heads, M features, D value width.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from linear_rope.ops.decay import faded, of_features
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.state import State, sum_keys
from linear_rope.tracing import has_tangent

Which = Literal["before", "after", "all"]
"""the parts whose states are summed: those before one's own, those after it, or all of them"""


class Part(NamedTuple):
    """What others learn of one's part of the sequence.

    Attributes:
        memory: (B, H, M, D); it and the next two are the fields of a State.
        key_sum: (B, H, M), or None.
        stabiliser: (B, H, 1), a constant for autograd; or None.
        log_kept: (B, H, 1), Σ ln a_t over the part: how what is on its one side fades until the other; None for 0.
        pairs_kept: (B, H, P), what pairs of features of the memory fade beyond that, or None.
        own_kept: (B, H, P) or (B, H, 1), likewise those of the key_sum.
    """

    memory: Tensor
    key_sum: Tensor | None
    stabiliser: Tensor | None
    log_kept: Tensor | None
    pairs_kept: Tensor | None = None
    own_kept: Tensor | None = None


def part_of(call: Call, *, from_the_end: bool = False) -> Part:
    """One's own part as seen from the position after its last token, or ``from_the_end`` from the one before its first.

    In that direction the decay of each token lies between its own key and those who see it.
    """
    if call.log_decay is None:
        return Part(*sum_keys(call), None)
    left, log_kept = _left(call.log_decay, from_the_end), call.log_decay.sum(-1, keepdim=True)
    if call.pair_decay is None or call.own_decay is None:
        return Part(*sum_keys(call, left), log_kept)

    def of_pairs(k: Tensor, decay: Tensor) -> Tensor:
        exponent = _left(decay.movedim(-1, 2), from_the_end).movedim(2, -1)
        return k * of_features(exponent.to(k.dtype), k.shape[-1])

    own_k = None if call.denominator_k is None else of_pairs(call.denominator_k, call.own_decay)
    terms = call._replace(k=of_pairs(call.k, call.pair_decay), denominator_k=own_k)
    return Part(*sum_keys(terms, left), log_kept, call.pair_decay.sum(2), call.own_decay.sum(2))


def _left(log_decay: Tensor, from_the_end: bool) -> Tensor:
    """ln of what is left of each key on the one side of the part, (..., N)."""
    sums, segment = faded(log_decay)
    if from_the_end:
        return sums.masked_fill(segment != 0, -torch.inf)
    return (sums[..., -1:] - sums).masked_fill(segment != segment[..., -1:], -torch.inf)


def received(own: Part, which: Which, group: dist.ProcessGroup | None) -> State:
    """The sum of the states of other parts, differentiable once, in reverse, with respect to all of them, in every
    process.

    Raises:
        ValueError: a tensor has a tangent.
    """
    if has_tangent(*own):
        raise ValueError(
            "a tensor has a tangent (torch.func.jvp, torch.autograd.forward_ad), and no tangents pass between "
            "processes; give the whole sequence to linear_rope.linear_attention, or differentiate in reverse"
        )
    return State(*_Received.apply(group, which, *own))


def all_gathered(own: Sequence[Tensor | None], group: dist.ProcessGroup | None) -> list[list[Tensor | None]]:
    """What every process of the group gave, in rank order; shapes and dtypes are the same in all of them."""
    given = [x for x in own if x is not None]
    # As bytes, because scales can have another dtype than what they scale.
    message = torch.cat([x.detach().contiguous().flatten().view(torch.uint8) for x in given])
    messages = [torch.empty_like(message) for _ in range(dist.get_world_size(group))]
    dist.all_gather(messages, message, group=group)
    everyones = []
    for message in messages:
        pieces = iter(message.split([x.numel() * x.element_size() for x in given]))
        # A copy of each, because a piece can begin where a number of its dtype may not.
        everyones.append([None if x is None else next(pieces).clone().view(x.dtype).view(x.shape) for x in own])
    return everyones


def summed(parts: Sequence[Part], which: Which) -> list[State]:
    """For each part, in rank order, the sum of the states of the parts that it sees."""
    if which == "after":
        return summed(parts[::-1], "before")[::-1]
    states = [_no_state(parts[0])]
    for part in parts:
        states.append(_joined(states[-1], part))
    return states[:-1] if which == "before" else states[-1:] * len(parts)


def _no_state(like: Part) -> State:
    smallest, stabiliser = torch.finfo(like.memory.dtype).min, like.stabiliser
    return State(
        torch.zeros_like(like.memory),
        None if like.key_sum is None else torch.zeros_like(like.key_sum),
        None if stabiliser is None else torch.full_like(stabiliser, smallest),
    )


def _joined(before: State, part: Part) -> State:
    """The state before a part, faded over it, and the part's own, under the larger of their scales."""
    log_kept, log_own, stabiliser = part.log_kept, None, part.stabiliser
    if before.stabiliser is not None and part.stabiliser is not None:
        exponent = before.stabiliser if log_kept is None else before.stabiliser + log_kept
        stabiliser = torch.maximum(exponent, part.stabiliser).detach()
        log_kept, log_own = exponent - stabiliser, part.stabiliser - stabiliser
    memory, key_sum = before.memory, before.key_sum
    if part.pairs_kept is not None and part.own_kept is not None:
        memory = memory * of_features(part.pairs_kept, memory.shape[2]).unsqueeze(-1)
        key_sum = None if key_sum is None else key_sum * of_features(part.own_kept, memory.shape[2])
    memory = _scaled(memory, log_kept) + _scaled(part.memory, log_own)
    if key_sum is not None and part.key_sum is not None:
        key_sum = _scaled(key_sum, log_kept) + _scaled(part.key_sum, log_own)
    return State(memory, key_sum, stabiliser)


def _scaled(x: Tensor, exponent: Tensor | None) -> Tensor:
    """``x`` (B, H, M, D) or (B, H, M) times exp of (B, H, 1)."""
    return x if exponent is None else x * exponent.exp().to(x.dtype).view(*x.shape[:2], *(1,) * (x.dim() - 2))


class _Received(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup | None, which: Which, *own: Tensor | None) -> tuple[Any, ...]:
        parts = [Part(*each) for each in all_gathered(own, group)]  # type: ignore[arg-type]
        ctx.group, ctx.which, ctx.rank = group, which, dist.get_rank(group)
        ctx.save_for_backward(*(x for part in parts for x in part))
        state = summed(parts, which)[ctx.rank]
        if state.stabiliser is not None:
            ctx.mark_non_differentiable(state.stabiliser)
        return tuple(state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        saved, size = ctx.saved_tensors, len(Part._fields)
        parts = [Part(*saved[at : at + size]) for at in range(0, len(saved), size)]
        # A gradient from every process, also where it is zero: they all wait for it.
        everyones = all_gathered(grads[:2], ctx.group)
        own = parts[ctx.rank]
        learned = {
            name: x.detach().requires_grad_()
            for name, x in own._asdict().items()
            if x is not None and name != "stabiliser"
        }
        parts[ctx.rank] = own._replace(**learned)
        with torch.enable_grad():
            # The derivative of a few sums of M × D numbers is left to autograd.
            pairs = [
                (x, grad)
                for state, of_state in zip(summed(parts, ctx.which), everyones, strict=True)
                for x, grad in zip(state[:2], of_state, strict=True)
                if x is not None and x.requires_grad
            ]
        if not pairs:  # nobody sees this part
            return (None,) * (2 + size)
        outputs, of_outputs = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, [*learned.values()], of_outputs, allow_unused=True)
        by_name = dict(zip(learned, found, strict=True))
        return None, None, *(by_name.get(name) for name in Part._fields)
