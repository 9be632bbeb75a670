"""Causal linear attention in chunks: quadratic inside a chunk, a running state between chunks.

With chunks of C positions it takes O(N·C·(M + D) + N·M·D) operations. A block is a stretch of whole chunks whose matrix
products are batched: :func:`block_sums` goes forward over one and :func:`block_gradients` is its derivative, by hand.

Axis names: B batch, H heads, L positions of a block, C chunk size, M features, D value width, S = B·H, G = S·L / C.
"""

import torch
from torch import Tensor

from linear_rope.ops.linear.call import Call, Gradients
from linear_rope.ops.linear.definition import Sums
from linear_rope.ops.linear.denominator import CHUNK_SIZE as DENOMINATOR_CHUNK_SIZE
from linear_rope.ops.linear.denominator import denominator_gradients, denominator_sums
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
    size = min(CHUNK_SIZE, length)
    scales = block_scales(terms.key_scale, terms.log_decay, None if state is None else state.stabiliser)
    factors = chunk_factors(scales, length, size, terms.q)
    q, k, v = _chunks(terms.q, size), _chunks(terms.k, size), _chunks(_values(terms), size)
    width = v.shape[-1]

    weights = torch.bmm(q, k.mT).mul_(factors.pairs)
    carried = None if state is None else _memory(terms, state).reshape(batch * heads, -1)
    increments = _increments(k, v, factors)
    states = states_before(increments, factors, carried).view(-1, features, width)
    memory = state_after(increments, factors, carried).view(batch, heads, features, width)
    sums = torch.bmm(weights, v)
    sums = sums.baddbmm_(q, states) if factors.query is None else sums.addcmul_(torch.bmm(q, states), factors.query)
    sums = sums.view(batch, heads, length, width)

    denominator = key_sum = None
    if terms.shares_weights:
        sums, denominator = sums[..., :-1], sums[..., -1]
        memory, key_sum = memory[..., :-1], memory[..., -1]
    elif terms.denominator_q is not None and terms.denominator_k is not None:
        size = _denominator_size(length)
        factors = chunk_factors(scales, length, size, terms.q)
        carried = None if state is None or state.key_sum is None else state.key_sum.flatten(0, 1)
        denominator, key_sum = denominator_sums(
            _chunks(terms.denominator_q, size), _chunks(terms.denominator_k, size), factors, carried
        )
        denominator = denominator.view(batch, heads, length)
        key_sum = key_sum.view(batch, heads, features)
    scale = _scale(terms, scales)
    return (
        (sums, denominator, scale),
        State(memory, key_sum, None if scale is None else scale[..., -1:]),
        weights,
    )


def block_gradients(
    terms: Call,
    weights: Tensor,
    state: State | None,
    grad_numerator: Tensor,
    grad_denominator: Tensor | None,
    grad_after: State | None,
) -> tuple[Gradients, State]:
    """The gradients of a block's terms and of the state before it, from those of its sums and the state after it."""
    batch, heads, length, features = terms.q.shape
    size = min(CHUNK_SIZE, length)
    scales = block_scales(terms.key_scale, terms.log_decay, None if state is None else state.stabiliser)
    factors = chunk_factors(scales, length, size, terms.q)
    q, k, v = _chunks(terms.q, size), _chunks(terms.k, size), _chunks(_values(terms), size)
    width = v.shape[-1]
    grad_sums = grad_numerator
    if terms.shares_weights:
        assert grad_denominator is not None
        grad_sums = torch.cat((grad_sums, grad_denominator.unsqueeze(-1)), dim=-1)
    grad_sums = _chunks(grad_sums, size)
    grad_read = grad_sums if factors.query is None else grad_sums * factors.query
    scaled_v = v if factors.key is None else v * factors.key
    carried = None if state is None else _memory(terms, state).reshape(batch * heads, -1)
    increments = _increments(k, v, factors)
    states = states_before(increments, factors, carried).view(-1, features, width)
    grad_memory = None if grad_after is None else _memory(terms, grad_after).reshape(batch * heads, -1)

    grad_weights = torch.bmm(grad_sums, v.mT).mul_(factors.pairs)
    grad_states = torch.bmm(q.mT, grad_read).view(batch * heads, -1, features * width)
    grad_increments = increment_gradients(grad_states, factors, grad_memory).view(-1, features, width)
    grad_memory = state_gradient(grad_states, factors, grad_memory).view(batch, heads, features, width)
    grad_q = torch.bmm(grad_weights, k).baddbmm_(grad_read, states.mT)
    grad_k = torch.bmm(grad_weights.mT, q).baddbmm_(scaled_v, grad_increments.mT)
    grad_v = torch.bmm(k, grad_increments)
    if factors.key is not None:
        grad_v.mul_(factors.key)
    grad_v = grad_v.baddbmm_(weights.mT, grad_sums).view(batch, heads, length, width)
    grad_q, grad_k = grad_q.view(terms.q.shape), grad_k.view(terms.k.shape)

    grad_key_sum = grad_denominator_q = grad_denominator_k = None
    if terms.shares_weights:
        grad_v = grad_v[..., :-1]
        grad_memory, grad_key_sum = grad_memory[..., :-1], grad_memory[..., -1]
    elif terms.denominator_q is not None and terms.denominator_k is not None:
        assert grad_denominator is not None
        size = _denominator_size(length)
        carried = None if grad_after is None or grad_after.key_sum is None else grad_after.key_sum.flatten(0, 1)
        grad_denominator_q, grad_denominator_k, grad_key_sum = denominator_gradients(
            _chunks(terms.denominator_q, size),
            _chunks(terms.denominator_k, size),
            chunk_factors(scales, length, size, terms.q),
            None if state is None or state.key_sum is None else state.key_sum.flatten(0, 1),
            grad_denominator.reshape(-1, size),
            carried,
        )
        grad_denominator_q = grad_denominator_q.view(terms.q.shape)
        grad_denominator_k = grad_denominator_k.view(terms.k.shape)
        grad_key_sum = grad_key_sum.view(batch, heads, features)
    gradients = Gradients(grad_q, grad_k, grad_v, grad_denominator_q, grad_denominator_k)
    return gradients, State(grad_memory, grad_key_sum, None)


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


def _values(terms: Call) -> Tensor:
    # A column of ones makes the denominator one more column of the numerator's products.
    return torch.cat((terms.v, torch.ones_like(terms.v[..., :1])), dim=-1) if terms.shares_weights else terms.v


def _memory(terms: Call, state: State) -> Tensor:
    if not terms.shares_weights:
        return state.memory
    assert state.key_sum is not None
    return torch.cat((state.memory, state.key_sum.unsqueeze(-1)), dim=-1)


def _denominator_size(length: int) -> int:
    return DENOMINATOR_CHUNK_SIZE if length % DENOMINATOR_CHUNK_SIZE == 0 else length


def _chunks(x: Tensor, size: int) -> Tensor:
    """(B, H, L, width) → (G, C, width)."""
    return x.reshape(-1, size, x.shape[-1])
