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
    pair_factors,
    state_after,
    state_gradient,
    states_before,
)
from linear_rope.ops.linear.state import State

CHUNK_SIZE = 64
PAIR_CHUNK_SIZE = 16
"""where pairs of features fade by themselves, whose factors inside a chunk are C × C each"""
DENOMINATOR_CHUNK_SIZE = 16
"""of a denominator with features of its own, whose state is a vector a head: carrying it is cheap"""
# More chunks make the product that carries states along, which is quadratic in their number, a tenth of the work.
BLOCK_CHUNKS = 16


def chunk_size(call: Call) -> int:
    """C."""
    return CHUNK_SIZE if call.pair_decay is None else PAIR_CHUNK_SIZE


def blocks(length: int, size: int) -> list[slice]:
    """Blocks of up to 16 whole chunks of ``size``; what is left over is a block of one shorter chunk."""
    whole, step = length - length % size, BLOCK_CHUNKS * size
    stretches = [slice(start, min(start + step, whole)) for start in range(0, whole, step)]
    return stretches if whole == length else [*stretches, slice(whole, length)]


def block_sums(terms: Call, state: State | None) -> tuple[Sums, State, Tensor]:
    """Sum over the keys of a block and those in ``state``; L is a multiple of C, or the only chunk is shorter.

    Returns:
        The sums, the state after the block, and the weights inside chunks (G, C, C).
    """
    batch, heads, length, features = terms.q.shape
    scales = block_scales(
        terms.key_scale, terms.log_decay, None if state is None else state.stabiliser, chunk_size(terms)
    )
    q, k, v, factors = _numerator(terms, scales)
    weights = torch.bmm(q, k.mT).mul_(factors.pairs) if factors.groups == 1 else _pair_weights(q, k, factors)
    sums, memory = _sums(weights, q, k, v, factors, _memory(terms, state))
    # With -1 an exporter does not know the width.
    sums, memory = sums.view(batch, heads, length, v.shape[-1]), memory.view(batch, heads, features, v.shape[-1])
    denominator = key_sum = None
    if terms.shares_weights:
        sums, denominator = sums[..., :-1], sums[..., -1]
        memory, key_sum = memory[..., :-1], memory[..., -1]
    elif terms.has_denominator:
        q, k, of_one, factors = _denominator(terms, scales, factors)
        before = None if state is None else state.key_sum
        inside = torch.bmm(q, k.mT).mul_(factors.pairs) if factors.groups == 1 else _pair_weights(q, k, factors)
        total, key_sum = _sums(inside, q, k, of_one, factors, before)
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
    scales = block_scales(
        terms.key_scale, terms.log_decay, None if state is None else state.stabiliser, chunk_size(terms)
    )
    q, k, v, factors = _numerator(terms, scales)
    grad_sums = grad_numerator
    if terms.shares_weights:
        assert grad_denominator is not None
        grad_sums = torch.cat((grad_sums, grad_denominator.unsqueeze(-1)), dim=-1)
    grad_sums = _chunks(grad_sums, q.shape[1])
    grad_q, grad_k, grad_increments, grad_memory = _gradients(
        q, k, v, factors, _memory(terms, state), grad_sums, _memory(terms, grad_after)
    )
    grad_v = torch.bmm(_faded(k, factors.key, factors), grad_increments)
    if factors.key is not None and factors.groups == 1:
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
        q, k, of_one, factors = _denominator(terms, scales, factors)
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
    increments = _increments(k, v, factors)
    before = None if before is None else before.reshape(increments.shape[0], -1)  # len would make a number of a symbol
    states = _by_chunk(states_before(increments, factors, before), factors, k.shape[-1], v.shape[-1])
    sums, query = torch.bmm(weights, v), factors.query
    if query is None or factors.groups > 1:
        sums = sums.baddbmm_(_faded(q, query, factors), states)
    else:
        sums = sums.addcmul_(torch.bmm(q, states), query)
    return sums, state_after(increments, factors, before)


def _pair_weights(q: Tensor, k: Tensor, factors: ChunkFactors) -> Tensor:
    """(G, C, C), inside chunks where pairs fade by themselves."""
    return (_by_pair(q, factors) @ _by_pair(k, factors).mT).mul_(factors.pairs).sum(1)


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
    increments, shape = _increments(k, v, factors), (k.shape[-1], v.shape[-1])
    before, grad_after = (None if x is None else x.reshape(len(increments), -1) for x in (before, grad_after))
    states = _by_chunk(states_before(increments, factors, before), factors, *shape)
    of_pairs = factors.groups > 1
    grad_read = grad_sums if factors.query is None or of_pairs else grad_sums * factors.query
    grad_weights = torch.bmm(grad_sums, v.mT)
    grad_states = _by_state(torch.bmm(_faded(q, factors.query, factors).mT, grad_read), factors)
    grad_increments = _by_chunk(increment_gradients(grad_states, factors, grad_after), factors, *shape)
    scaled_v = v if factors.key is None or of_pairs else v * factors.key
    if of_pairs:
        grad_products = factors.pairs * grad_weights.unsqueeze(1)
        inside_q, inside_k = grad_products @ _by_pair(k, factors), grad_products.mT @ _by_pair(q, factors)
        of_q = _faded(torch.bmm(grad_read, states.mT), factors.query, factors)
        of_k = _faded(torch.bmm(scaled_v, grad_increments.mT), factors.key, factors)
        grad_q, grad_k = of_q + inside_q.transpose(1, 2).flatten(2), of_k + inside_k.transpose(1, 2).flatten(2)
    else:
        grad_weights.mul_(factors.pairs)
        grad_q = torch.bmm(grad_weights, k).baddbmm_(grad_read, states.mT)
        grad_k = torch.bmm(grad_weights.mT, q).baddbmm_(scaled_v, grad_increments.mT)
    return grad_q, grad_k, grad_increments, state_gradient(grad_states, factors, grad_after)


def _scale(terms: Call, scales: Scales | None) -> Tensor | None:
    """c_i, (B, H, L), as seen from each position; None for zero."""
    if scales is None or terms.key_scale is None:
        return None
    scale = scales.query if scales.faded is None else scales.query + scales.faded
    return scale.view(terms.key_scale.shape)


def _increments(k: Tensor, v: Tensor, factors: ChunkFactors) -> Tensor:
    """What each chunk adds to the memory, (S, n, M·D), or (S·P, n, w·D) of pairs of w features."""
    scaled_v = v if factors.key is None or factors.groups > 1 else v * factors.key
    return _by_state(torch.bmm(_faded(k, factors.key, factors).mT, scaled_v), factors)


def _faded(x: Tensor, factor: Tensor | None, factors: ChunkFactors) -> Tensor:
    """``x`` (G, C, M) times what its pairs fade by; where heads fade, what it is multiplied with has the factor."""
    return x if factor is None or factors.groups == 1 else x * factor


def _by_pair(x: Tensor, factors: ChunkFactors) -> Tensor:
    """(G, C, M) → (G, P, C, w)."""
    return x.unflatten(-1, (factors.groups, -1)).transpose(1, 2)


def _by_state(x: Tensor, factors: ChunkFactors) -> Tensor:
    """(G, M, D) → (S·P, n, w·D)."""
    chunks, groups = factors.carry.shape[-1], factors.groups
    return x.view(-1, chunks, groups, x[0].numel() // groups).transpose(1, 2).flatten(0, 1)


def _by_chunk(x: Tensor, factors: ChunkFactors, features: int, width: int) -> Tensor:
    """(S·P, n, w·D) → (G, M, D)."""
    return x.unflatten(0, (-1, factors.groups)).transpose(1, 2).reshape(-1, features, width)


def _numerator(terms: Call, scales: Scales | None) -> tuple[Tensor, Tensor, Tensor, ChunkFactors]:
    """q, k and v in chunks; a column of ones makes a denominator that shares weights one more column of products."""
    length, v = terms.q.shape[2], terms.v
    if terms.shares_weights:
        v = torch.cat((v, torch.ones_like(v[..., :1])), dim=-1)
    size = min(chunk_size(terms), length)
    q, k, v = (_chunks(x, size) for x in (terms.q, terms.k, v))
    factors = chunk_factors(scales, length, size, terms.q)
    return q, k, v, _of_pairs(factors, terms.pair_decay, terms)


def _of_pairs(factors: ChunkFactors, decay: Tensor | None, terms: Call) -> ChunkFactors:
    return factors if decay is None else pair_factors(factors, decay.flatten(0, 1), terms.q.shape[-1])


def _denominator(
    terms: Call, scales: Scales | None, factors: ChunkFactors
) -> tuple[Tensor, Tensor, Tensor, ChunkFactors]:
    """Likewise of a denominator with features of its own: linear attention whose values are all one.

    ``factors`` are the numerator's, which it shares where both fade pair by pair.
    """
    assert terms.denominator_q is not None
    assert terms.denominator_k is not None
    length = terms.q.shape[2]
    size = DENOMINATOR_CHUNK_SIZE if length % DENOMINATOR_CHUNK_SIZE == 0 else length  # of pairs that is C too
    q, k = (_chunks(x, size) for x in (terms.denominator_q, terms.denominator_k))
    if terms.pair_decay is None or terms.denominator_decay is not None:
        factors = _of_pairs(chunk_factors(scales, length, size, terms.q), terms.own_decay, terms)
    return q, k, torch.ones_like(q[..., :1]), factors


def _memory(terms: Call, state: State | None) -> Tensor | None:
    if state is None or not terms.shares_weights:
        return None if state is None else state.memory
    assert state.key_sum is not None
    return torch.cat((state.memory, state.key_sum.unsqueeze(-1)), dim=-1)


def _chunks(x: Tensor, size: int) -> Tensor:
    """(B, H, L, width) → (G, C, width)."""
    return x.reshape(-1, size, x.shape[-1])
