"""The factors exp(g_j + L_i − L_j − c_i) of a block, split into what happens inside a chunk and what between chunks.

With scales g the stabiliser c_i is the running maximum of the exponents; without, it is zero: what fades is at most 1.
Exponents are relative to the position before the block, s_j = g_j − L_j and c_i − L_i, and are subtracted in float64
before they are rounded.

Axis names: B batch, H heads, S = B·H, L positions of a block, C chunk size, n = L / C, G = S·n, W width of a state.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope.ops.decay import faded, of_features, running_maximum


class Scales(NamedTuple):
    """Exponents of a block, relative to the position before it.

    Attributes:
        key: (S, L), s_j.
        query: (S, L), c_i − L_i, at least s_j for every j ≤ i of its segment.
        before: (S, 1), c of the state before the block.
        faded: (S, L), L_i; None without decay.
        segment: (S, L), resets up to each position; None without decay.
    """

    key: Tensor
    query: Tensor
    before: Tensor
    faded: Tensor | None
    segment: Tensor | None


def block_scales(
    key_scale: Tensor | None, log_decay: Tensor | None, before: Tensor | None, chunk: int
) -> Scales | None:
    """The exponents of a block from key scales and decays (B, H, L) and the state's stabiliser (B, H, 1).

    None where there are neither.
    """
    if key_scale is not None:
        key_scale = key_scale.flatten(0, 1)
        smallest = torch.finfo(key_scale.dtype).min
        before = key_scale.new_full((key_scale.shape[0], 1), smallest) if before is None else before.flatten(0, 1)
    if log_decay is None:
        if key_scale is None or before is None:
            return None
        return Scales(key_scale, torch.maximum(running_maximum(key_scale, None, chunk), before), before, None, None)
    sums, segment = faded(log_decay.flatten(0, 1))
    if key_scale is None or before is None:
        return Scales(-sums, -sums, torch.zeros_like(sums[:, :1]), sums, segment)
    key = key_scale - sums
    before, largest = before.to(key.dtype), running_maximum(key, segment, chunk)
    # The state is a key more, at the front of the first segment.
    return Scales(key, torch.where(segment == 0, torch.maximum(largest, before), largest), before, sums, segment)


class ChunkFactors(NamedTuple):
    """Constants for autograd, all at most 1. Those that are None are 1.

    With decays of pairs ``pairs`` is (G, P, C, C), ``query`` and ``key`` are (G, C, M), and the others have S·P for S.

    Attributes:
        pairs: (G, C, C), exp(s_j − c_i) for j ≤ i of the same segment, else zero; (C, C) without scales.
        query: (G, C, 1), exp(c_begin − c_i): how a query reads the state before its chunk.
        key: (G, C, 1), exp(s_j − c_end): how a key enters what its chunk adds to the state.
        carry: (S, n, n), exp(c_end_j − c_begin_i) for chunks j < i, else zero: the states before chunks from what
            chunks add; (n, n) without scales.
        before: (S, n, 1), exp(c_block − c_begin): how the state before the block fades until each chunk.
        after: (S, 1, n), exp(c_end_j − c_end): what is left of each chunk after the block.
        kept: (S, 1), exp(c_block − c_end): what is left of the state before the block.
    """

    pairs: Tensor
    query: Tensor | None
    key: Tensor | None
    carry: Tensor
    before: Tensor | None
    after: Tensor | None
    kept: Tensor | None

    @property
    def groups(self) -> int:
        """P, or 1 where all features of a head fade alike."""
        return self.pairs.shape[1] if self.pairs.dim() == 4 else 1


def chunk_factors(scales: Scales | None, length: int, size: int, like: Tensor) -> ChunkFactors:
    """The factors of a block of ``length`` positions in chunks of ``size``, which divides it; of ``like``'s dtype."""
    chunks = length // size
    later = torch.ones(size, size, dtype=torch.bool, device=like.device).triu_(1)
    not_before = torch.ones(chunks, chunks, dtype=torch.bool, device=like.device).triu_()
    if scales is None:
        return ChunkFactors(1 - later.to(like.dtype), None, None, 1 - not_before.to(like.dtype), None, None, None)
    # Exponents and, with a decay, the segments that they belong to: those of different segments do not meet.
    segments = [] if scales.segment is None else [scales.segment]
    key, query = ([x.unflatten(1, (-1, size)) for x in (value, *segments)] for value in (scales.key, scales.query))
    end = [x[:, :, -1] for x in query]
    before = [scales.before, *(torch.zeros_like(x[:, :1]) for x in end[1:])]
    begin = [torch.cat((first, x[:, :-1]), dim=1) for first, x in zip(before, end, strict=True)]
    last = [x[:, -1:] for x in end]

    def factor(of: list[Tensor], to: list[Tensor], hidden: Tensor | None = None) -> Tensor:
        exponent = (of[0] - to[0]).to(like.dtype)
        if hidden is not None:
            exponent.masked_fill_(hidden, -torch.inf)
        for one, other in zip(of[1:], to[1:], strict=True):
            exponent.masked_fill_(one != other, -torch.inf)
        return exponent.exp_()

    def along(axis: int, each: list[Tensor]) -> list[Tensor]:
        return [x.unsqueeze(axis) for x in each]

    return ChunkFactors(
        pairs=factor(along(2, key), along(3, query), later).flatten(0, 1),
        query=factor(along(2, begin), query).view(-1, size, 1),
        key=factor(key, along(2, end)).view(-1, size, 1),
        carry=factor(along(1, end), along(2, begin), not_before),
        before=factor(before, begin).unsqueeze(2),
        after=factor(end, last).unsqueeze(1),
        kept=factor(before, last),
    )


def pair_factors(factors: ChunkFactors, decay: Tensor, features: int) -> ChunkFactors:
    """``factors`` times what pairs fade by beyond them, ``decay`` (S, L, P); one pair is all features.

    As GLA has it inside sub-chunks (arXiv 2312.06635, section 4.3), with sums that begin at a position of a chunk, or
    with a chunk, and are subtracted nowhere: no exponent is above 0, and what follows a reset is exact.
    """
    pairs = decay.shape[-1]
    each = decay.unflatten(1, (-1, factors.pairs.shape[-1])).movedim(-1, 2)  # (S, n, P, C)
    inside, whole = _sums_between(each), each.sum(-1).mT
    between, past = _sums_between(whole), whole.cumsum(-1)

    def of_positions(factor: Tensor | None, exponent: Tensor) -> Tensor:
        assert factor is not None
        return factor * of_features(exponent.flatten(0, 1).mT, features if pairs > 1 else 1)

    def of_states(factor: Tensor | None, exponent: Tensor) -> Tensor:
        assert factor is not None
        return (factor.unsqueeze(1) * exponent.exp()).flatten(0, 1)

    shares = factors.pairs.unsqueeze(1) * inside.flatten(0, 1).exp()
    return ChunkFactors(
        pairs=shares if pairs > 1 else shares[:, 0],  # ONNX's squeeze takes axes of length 1 alone
        query=of_positions(factors.query, each.cumsum(-1)),
        key=of_positions(factors.key, inside[..., -1, :]),
        carry=of_states(factors.carry, between.roll(1, -2)),
        before=of_states(factors.before, F.pad(past[..., :-1], (1, 0)).unsqueeze(-1)),
        after=of_states(factors.after, between[..., -1:, :]),
        kept=of_states(factors.kept, past[..., -1:]),
    )


def _sums_between(x: Tensor) -> Tensor:
    """(..., C) → (..., C, C): at [i, j] the sum of what comes after j up to i."""
    size = x.shape[-1]
    is_after = torch.ones(size, size, dtype=torch.bool, device=x.device).tril_(-1)
    return torch.where(is_after, x.unsqueeze(-1), 0).cumsum(-2)


def states_before(increments: Tensor, factors: ChunkFactors, state: Tensor | None) -> Tensor:
    """The state before each chunk, (S, n, W), from what chunks add (S, n, W) and the state before the block (S, W)."""
    states = torch.bmm(factors.carry.expand(increments.shape[0], -1, -1), increments)
    return states if state is None else _add(states, state.unsqueeze(1), factors.before)


def state_after(increments: Tensor, factors: ChunkFactors, state: Tensor | None) -> Tensor:
    """The state after the block, (S, W)."""
    after = increments.sum(1) if factors.after is None else torch.bmm(factors.after, increments).squeeze(1)
    return after if state is None else _add(after, state, factors.kept)


def increment_gradients(grad_states: Tensor, factors: ChunkFactors, grad_after: Tensor | None) -> Tensor:
    """The gradient of what chunks add, from those of the states before chunks and of the state after the block."""
    transposed = factors.carry.mT.expand(grad_states.shape[0], -1, -1)
    grads = torch.bmm(transposed, grad_states)
    if grad_after is None:
        return grads
    return _add(grads, grad_after.unsqueeze(1), None if factors.after is None else factors.after.mT)


def state_gradient(grad_states: Tensor, factors: ChunkFactors, grad_after: Tensor | None) -> Tensor:
    """The gradient of the state before the block, (S, W)."""
    grad = grad_states.sum(1) if factors.before is None else torch.bmm(factors.before.mT, grad_states).squeeze(1)
    return grad if grad_after is None else _add(grad, grad_after, factors.kept)


def _add(total: Tensor, x: Tensor, factor: Tensor | None) -> Tensor:
    return total.add_(x) if factor is None else total.addcmul_(x, factor)
