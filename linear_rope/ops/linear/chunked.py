"""Causal linear attention in chunks: quadratic inside a chunk, a running state between chunks.

With chunks of C positions it takes O(N·C·(M + D) + N·M·D) operations. A block is a stretch of whole chunks whose matrix
products are batched: :func:`block_sums` goes forward over one and :func:`block_gradients` is its derivative, by hand.

Axis names: B batch, H heads, L positions of a block, C chunk size, M features, D value width, S = B·H, G = S·L / C.
"""

import torch
from torch import Tensor

from linear_rope.ops.linear.call import Call, Gradients
from linear_rope.ops.linear.definition import Sums
from linear_rope.ops.linear.stabiliser import (
    ChunkFactors,
    Scales,
    block_scales,
    chunk_factors,
    increment_gradients,
    state_after,
    state_gradient,
    states_before,
)
from linear_rope.ops.linear.state import State

CHUNK_SIZE = 64
DENOMINATOR_CHUNK_SIZE = 16
"""of a denominator with features of its own, whose state is a vector a head: carrying it is cheap"""
# More chunks make the product that carries states along, which is quadratic in their number, a tenth of the work.
BLOCK_CHUNKS = 16


def blocks(length: int) -> list[slice]:
    """Blocks of up to 16 whole chunks; what is left over is a block of one shorter chunk."""
    whole, step = length - length % CHUNK_SIZE, BLOCK_CHUNKS * CHUNK_SIZE
    stretches = [slice(start, min(start + step, whole)) for start in range(0, whole, step)]
    return stretches if whole == length else [*stretches, slice(whole, length)]


def block_sums(terms: Call, state: State | None) -> tuple[Sums, State, Tensor]:
    """Sum over the keys of a block and those in ``state``; L is a multiple of C, or the only chunk is shorter.

    Returns:
        The sums, the state after the block, and the weights inside chunks (G, C, C).
    """
    batch, heads, length, features = terms.q.shape
    scales = block_scales(terms.key_scale, terms.log_decay, None if state is None else state.stabiliser)
    q, k, v, factors = _numerator(terms, scales)
    weights = torch.bmm(q, k.mT).mul_(factors.pairs)
    sums, memory = _sums(weights, q, k, v, factors, _memory(terms, state))
    sums, memory = sums.view(batch, heads, length, -1), memory.view(batch, heads, features, -1)
    denominator = key_sum = None
    if terms.shares_weights:
        sums, denominator = sums[..., :-1], sums[..., -1]
        memory, key_sum = memory[..., :-1], memory[..., -1]
    elif terms.has_denominator:
        q, k, of_one, factors = _denominator(terms, scales)
        before = None if state is None else state.key_sum
        total, key_sum = _sums(torch.bmm(q, k.mT).mul_(factors.pairs), q, k, of_one, factors, before)
        denominator, key_sum = total.view(batch, heads, length), key_sum.view(batch, heads, features)
    scale = _scale(terms, scales)
    after = State(memory, key_sum, None if scale is None else scale[..., -1:])
    return (sums, denominator, scale), after, weights


def block_gradients(
    terms: Call,
    weights: Tensor,
    state: State | None,
    grad_numerator: Tensor,
    grad_denominator: Tensor | None,
    grad_after: State | None,
) -> tuple[Gradients, State]:
    """The gradients of a block's terms and of the state before it, from those of its sums and the state after it."""
    scales = block_scales(terms.key_scale, terms.log_decay, None if state is None else state.stabiliser)
    q, k, v, factors = _numerator(terms, scales)
    grad_sums = grad_numerator
    if terms.shares_weights:
        assert grad_denominator is not None
        grad_sums = torch.cat((grad_sums, grad_denominator.unsqueeze(-1)), dim=-1)
    grad_sums = _chunks(grad_sums, q.shape[1])
    grad_q, grad_k, grad_increments, grad_memory = _gradients(
        q, k, v, factors, _memory(terms, state), grad_sums, _memory(terms, grad_after)
    )
    grad_v = torch.bmm(k, grad_increments)
    if factors.key is not None:
        grad_v.mul_(factors.key)
    grad_v = grad_v.baddbmm_(weights.mT, grad_sums).view(*terms.v.shape[:3], -1)
    grad_memory = grad_memory.view(*terms.q.shape[:2], -1, v.shape[-1])
    grad_q, grad_k = grad_q.view(terms.q.shape), grad_k.view(terms.k.shape)

    grad_key_sum = grad_denominator_q = grad_denominator_k = None
    if terms.shares_weights:
        grad_v = grad_v[..., :-1]
        grad_memory, grad_key_sum = grad_memory[..., :-1], grad_memory[..., -1]
    elif terms.has_denominator:
        assert grad_denominator is not None
        q, k, of_one, factors = _denominator(terms, scales)
        before, after = (None if each is None else each.key_sum for each in (state, grad_after))
        grad_sums = grad_denominator.reshape(-1, q.shape[1], 1)
        found = _gradients(q, k, of_one, factors, before, grad_sums, after)
        grad_denominator_q, grad_denominator_k = (x.view(terms.q.shape) for x in found[:2])
        grad_key_sum = found[3].view(*terms.q.shape[:2], -1)
    gradients = Gradients(grad_q, grad_k, grad_v, grad_denominator_q, grad_denominator_k)
    return gradients, State(grad_memory, grad_key_sum, None)


def _sums(
    weights: Tensor, q: Tensor, k: Tensor, v: Tensor, factors: ChunkFactors, before: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The sums (G, C, D), and the state (S, M·D) after the block; ``before`` (B, H, M, D) is that before it."""
    increments, before = _increments(k, v, factors), None if before is None else before.flatten(2).flatten(0, 1)
    states = states_before(increments, factors, before).view(-1, k.shape[-1], v.shape[-1])
    sums = torch.bmm(weights, v)
    sums = sums.baddbmm_(q, states) if factors.query is None else sums.addcmul_(torch.bmm(q, states), factors.query)
    return sums, state_after(increments, factors, before)


def _gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: ChunkFactors,
    before: Tensor | None,
    grad_sums: Tensor,
    grad_after: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, what each chunk adds to the state (G, M, D), and the state before the block (S, M·D)."""
    before, grad_after = (None if x is None else x.flatten(2).flatten(0, 1) for x in (before, grad_after))
    shape = k.shape[-1], v.shape[-1]
    states = states_before(_increments(k, v, factors), factors, before).view(-1, *shape)
    grad_read = grad_sums if factors.query is None else grad_sums * factors.query
    grad_weights = torch.bmm(grad_sums, v.mT).mul_(factors.pairs)
    grad_states = torch.bmm(q.mT, grad_read).view(-1, factors.carry.shape[-1], shape[0] * shape[1])
    grad_increments = increment_gradients(grad_states, factors, grad_after).view(-1, *shape)
    scaled_v = v if factors.key is None else v * factors.key
    return (
        torch.bmm(grad_weights, k).baddbmm_(grad_read, states.mT),
        torch.bmm(grad_weights.mT, q).baddbmm_(scaled_v, grad_increments.mT),
        grad_increments,
        state_gradient(grad_states, factors, grad_after),
    )


def _scale(terms: Call, scales: Scales | None) -> Tensor | None:
    """c_i, (B, H, L), as seen from each position; None for zero."""
    if scales is None or terms.key_scale is None:
        return None
    scale = scales.query if scales.faded is None else scales.query + scales.faded
    return scale.view(terms.key_scale.shape)


def _increments(k: Tensor, v: Tensor, factors: ChunkFactors) -> Tensor:
    """What each chunk adds to the memory, (S, n, M·D)."""
    scaled_v = v if factors.key is None else v * factors.key
    return torch.bmm(k.mT, scaled_v).view(-1, factors.carry.shape[-1], k.shape[-1] * v.shape[-1])


def _numerator(terms: Call, scales: Scales | None) -> tuple[Tensor, Tensor, Tensor, ChunkFactors]:
    """q, k and v in chunks; a column of ones makes a denominator that shares weights one more column of products."""
    length, v = terms.q.shape[2], terms.v
    if terms.shares_weights:
        v = torch.cat((v, torch.ones_like(v[..., :1])), dim=-1)
    size = min(CHUNK_SIZE, length)
    q, k, v = (_chunks(x, size) for x in (terms.q, terms.k, v))
    return q, k, v, chunk_factors(scales, length, size, terms.q)


def _denominator(terms: Call, scales: Scales | None) -> tuple[Tensor, Tensor, Tensor, ChunkFactors]:
    """Likewise of a denominator with features of its own: linear attention whose values are all one."""
    assert terms.denominator_q is not None
    assert terms.denominator_k is not None
    length = terms.q.shape[2]
    size = DENOMINATOR_CHUNK_SIZE if length % DENOMINATOR_CHUNK_SIZE == 0 else length
    q, k = (_chunks(x, size) for x in (terms.denominator_q, terms.denominator_k))
    return q, k, torch.ones_like(q[..., :1]), chunk_factors(scales, length, size, terms.q)


def _memory(terms: Call, state: State | None) -> Tensor | None:
    if state is None or not terms.shares_weights:
        return None if state is None else state.memory
    assert state.key_sum is not None
    return torch.cat((state.memory, state.key_sum.unsqueeze(-1)), dim=-1)


def _chunks(x: Tensor, size: int) -> Tensor:
    """(B, H, L, width) → (G, C, width)."""
    return x.reshape(-1, size, x.shape[-1])
