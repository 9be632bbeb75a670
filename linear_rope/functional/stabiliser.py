"""The stabiliser's factors exp(g_j − c_i), split into what happens inside a chunk and what between chunks.

Axis names: B batch, H heads, S = B·H, L positions of a block, C chunk size, n = L / C, G = S·n, W width of a state.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class ChunkFactors(NamedTuple):
    """Constants for autograd, all at most 1. Those that are None are 1.

    Attributes:
        pairs: (G, C, C), exp(g_j − c_i) for j ≤ i, zero for later keys; (C, C) without key scales.
        query: (G, C, 1), exp(c_begin − c_i): how a query reads the state before its chunk.
        key: (G, C, 1), exp(g_j − c_end): how a key enters what its chunk adds to the state.
        carry: (S, n, n), exp(c_end_j − c_begin_i) for chunks j < i, else zero: the states before chunks from what
            chunks add; (n, n) without key scales.
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


def mask_factors(length: int, size: int, like: Tensor) -> ChunkFactors:
    """The factors where keys have no scales: what comes later does not count."""
    chunks = length // size
    pairs = torch.ones(size, size, dtype=like.dtype, device=like.device).tril_()
    carry = torch.ones(chunks, chunks, dtype=like.dtype, device=like.device).tril_(-1)
    return ChunkFactors(pairs, None, None, carry, None, None, None)


def scale_factors(key_scale: Tensor, stabiliser: Tensor, block: Tensor, size: int) -> ChunkFactors:
    """The factors of a block.

    Args:
        key_scale: (B, H, L), g_j.
        stabiliser: (B, H, L), c_i.
        block: (B, H, 1), c before the block.
        size: C; divides L.
    """
    length = key_scale.shape[-1]
    scale, stabiliser = key_scale.reshape(-1, length // size, size), stabiliser.reshape(-1, length // size, size)
    block = block.reshape(-1, 1)
    end = stabiliser[:, :, -1]
    begin = torch.cat((block, end[:, :-1]), dim=1)
    pairs = scale.reshape(-1, 1, size) - stabiliser.reshape(-1, size, 1)
    carry = end.unsqueeze(1) - begin.unsqueeze(2)
    last = end[:, -1:]
    return ChunkFactors(
        pairs=pairs.add_(_minus_infinity_above(size, 1, pairs)).exp_(),
        query=(begin.unsqueeze(2) - stabiliser).exp_().reshape(-1, size, 1),
        key=(scale - end.unsqueeze(2)).exp_().reshape(-1, size, 1),
        carry=carry.add_(_minus_infinity_above(length // size, 0, carry)).exp_(),
        before=(block - begin).exp_().unsqueeze(2),
        after=(end - last).exp_().unsqueeze(1),
        kept=(block - last).exp_(),
    )


def running_maximum(key_scale: Tensor, block: Tensor) -> Tensor:
    """c_i = max(c before the block, max_{j ≤ i} g_j), (B, H, L)."""
    return torch.maximum(key_scale.cummax(-1).values, block)


def states_before(increments: Tensor, factors: ChunkFactors, state: Tensor | None, out: Tensor | None) -> Tensor:
    """The state before each chunk, (S, n, W), from what chunks add (S, n, W) and the state before the block (S, W)."""
    states = torch.bmm(factors.carry.expand(increments.shape[0], -1, -1), increments, out=out)
    return states if state is None else _add(states, state.unsqueeze(1), factors.before)


def state_after(increments: Tensor, factors: ChunkFactors, state: Tensor | None) -> Tensor:
    """The state after the block, (S, W)."""
    after = increments.sum(1) if factors.after is None else torch.bmm(factors.after, increments).squeeze(1)
    return after if state is None else _add(after, state, factors.kept)


def increment_gradients(
    grad_states: Tensor, factors: ChunkFactors, grad_after: Tensor | None, out: Tensor | None
) -> Tensor:
    """The gradient of what chunks add, from those of the states before chunks and of the state after the block."""
    transposed = factors.carry.mT.expand(grad_states.shape[0], -1, -1)
    grads = torch.bmm(transposed, grad_states, out=out)
    if grad_after is None:
        return grads
    return _add(grads, grad_after.unsqueeze(1), None if factors.after is None else factors.after.mT)


def state_gradient(grad_states: Tensor, factors: ChunkFactors, grad_after: Tensor | None) -> Tensor:
    """The gradient of the state before the block, (S, W)."""
    grad = grad_states.sum(1) if factors.before is None else torch.bmm(factors.before.mT, grad_states).squeeze(1)
    return grad if grad_after is None else _add(grad, grad_after, factors.kept)


def _add(total: Tensor, x: Tensor, factor: Tensor | None) -> Tensor:
    return total.add_(x) if factor is None else total.addcmul_(x, factor)


def _minus_infinity_above(size: int, diagonal: int, like: Tensor) -> Tensor:
    return torch.full((size, size), -torch.inf, dtype=like.dtype, device=like.device).triu_(diagonal)
