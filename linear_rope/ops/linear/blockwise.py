"""Causal linear attention block after block, from the inputs, so that nothing as wide as the features is kept.

Forward maps a block of positions, sums it and keeps the output, the weights inside its chunks and the state before it.
Backward goes through the blocks from the last to the first, maps each again and differentiates it by hand. With blocks
of L positions it keeps O(D + C + M·D/L) numbers for each position and head, and the rotations, M for each position.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linear_rope.features.base import Formula
from linear_rope.ops.linear.call import (
    Call,
    Gradients,
    Result,
    Upstream,
    dot,
    empty_gradients,
    new_exponents_of_states,
    put_exponents,
)
from linear_rope.ops.linear.call import empty_result as any_result
from linear_rope.ops.linear.chunked import BLOCK_CHUNKS, CHUNK_SIZE, block_gradients, block_sums, blocks
from linear_rope.ops.linear.definition import attention_output
from linear_rope.ops.linear.rotated_features import rotated_features
from linear_rope.ops.linear.state import State
from linear_rope.positions.rotary import rotate

# Elements of the features of one block: 4 MB of float32 are about what a processor caches; a GPU wants large batches.
BLOCK_ELEMENTS = {"cpu": 2**20}
OTHER_BLOCK_ELEMENTS = 2**25
STRETCH = BLOCK_CHUNKS * CHUNK_SIZE
"""positions of a block, but for the last two"""


class Region(NamedTuple):
    """Some sequences, heads and positions: an index of (B, H, N, ·)."""

    batch: slice
    heads: slice
    positions: slice


def empty_result(call: Call, *, keep: bool) -> Result:
    """Memory for a result, with that for :func:`differentiate` if ``keep``."""
    if not keep:
        return any_result(call)
    batch, heads, length, _ = call.q.shape
    # An upper bound that a compiler can reckon with, and never 1: it would make an axis of one a case of its own.
    later, features, dtype = length // STRETCH + 2, call.features, call.dtype
    return any_result(
        call,
        weights=call.new(batch, heads, length, CHUNK_SIZE, dtype=dtype),
        memories=call.new(later, batch, heads, features, call.v.shape[-1], dtype=dtype),
        key_sums=call.new(later, batch, heads, features, exists=call.has_denominator, dtype=dtype),
        stabilisers=call.new(later, batch, heads, 1, exists=call.has_scale, dtype=call.exact),
    )


def attend(call: Call, *, keep: bool) -> Result:
    """Forward; ``keep`` what :func:`differentiate` needs."""
    result, formula = empty_result(call, keep=keep), call.make_formula()
    for batch, heads in _groups(call):
        state = _state_at(call, batch, heads)
        for number, positions in enumerate(blocks(call.q.shape[2])):
            at = Region(batch, heads, positions)
            if keep and number and state is not None:
                _put_state((result.memories, result.key_sums, result.stabilisers), state, (number - 1, batch, heads))
            features, *_ = _block(call, formula, at)
            sums, state, weights = block_sums(features, state)
            result.output[at] = attention_output(sums, features.query_scale)
            for to, x in zip((result.denominator, result.scale), sums[1:], strict=True):
                if x is not None:
                    to[at] = x
            if keep:
                _weights_at(result.weights, at).copy_(weights.view(_weights_at(result.weights, at).shape))
        assert state is not None
        _put_state((result.memory, result.key_sum, result.stabiliser), state, (batch, heads))
    return result


def differentiate(call: Call, result: Result, of: Upstream) -> Gradients:
    """Backward."""
    gradients, formula = empty_gradients(call), call.make_formula()
    exponents = result.denominator.new_zeros(2, *call.q.shape[:3], dtype=call.dtype) if call.has_exponents else None
    of_states = new_exponents_of_states(call, result, of, STRETCH)
    stretches = list(enumerate(blocks(call.q.shape[2])))
    for batch, heads in _groups(call):
        after = None
        if of.memory is not None:
            after = State(of.memory[batch, heads], _part(of.key_sum, batch, heads), None)
        for number, positions in reversed(stretches):
            at = Region(batch, heads, positions)
            if call.log_decay is not None and positions.stop % STRETCH == 0 and number + 1 < len(stretches):
                assert after is not None
                state = _state_before(call, result, number + 1, batch, heads)
                of_states[batch, heads, number : number + 1] = _exponent(after, state)
            state = _state_before(call, result, number, batch, heads)
            terms, given, mapped_q, mapped_k = _block(call, formula, at)
            denominator = result.denominator[at] if call.has_denominator else None
            scale = result.scale[at] if result.scale.numel() else None
            grad_sums = attention_output((of.output[at].to(call.dtype), denominator, scale), terms.query_scale)
            of_denominator = None
            if call.has_denominator:
                of_denominator = -(grad_sums * result.output[at]).sum(-1)
                if of.denominator is not None:
                    of_denominator += of.denominator[at]
            weights = _weights_at(result.weights, at).flatten(0, 2)
            of_terms, after = block_gradients(terms, weights, state, grad_sums, of_denominator, after)
            if exponents is not None:
                exponents[0][at], exponents[1][at] = _exponents(terms, of_terms)
            _put_inputs(gradients, formula, given, mapped_q, mapped_k, of_terms, at)
        assert after is not None
        if gradients.memory is not None:
            gradients.memory[batch, heads] = after.memory
        if gradients.key_sum is not None and after.key_sum is not None:
            gradients.key_sum[batch, heads] = after.key_sum
    if exponents is not None:
        put_exponents(gradients, call, exponents[0], exponents[1], of_states, STRETCH)
    return gradients


def _exponent(grad: State, state: State | None) -> Tensor | float:
    """The gradient (b, h, 1) of the exponent of a state, from that of the state."""
    assert state is not None
    of_memory = dot(grad.memory, state.memory)
    return of_memory if state.key_sum is None else of_memory + dot(grad.key_sum, state.key_sum)


def _block(call: Call, formula: Formula, at: Region) -> tuple[Call, Call, Tensor, Tensor]:
    """What is summed of a block of positions, and what the formula maps, φ(q) and φ(k)."""
    q, k, v = (x[at].to(call.dtype).contiguous() for x in (call.q, call.k, call.v))
    part = Call(
        q,
        k,
        v,
        denominator_q=_part(call.denominator_q, *at),
        denominator_k=_part(call.denominator_k, *at),
        query_scale=_part(call.query_scale, *at),
        key_scale=_part(call.key_scale, *at),
        log_decay=_part(call.log_decay, *at),
        padding=None if call.padding is None else call.padding[at.batch, :, at.positions],
        q_rotation=_rotation_at(call.q_rotation, at),
        k_rotation=_rotation_at(call.k_rotation, at),
        denominator=call.denominator,
    )
    of_q, of_k = formula.features(q), formula.features(k)
    return rotated_features(part, of_q, of_k, v), part, of_q.values, of_k.values


def _exponents(terms: Call, of: Gradients) -> tuple[Tensor, Tensor]:
    """The gradients (B, H, L) of each query's, and of each key's, own exponent.

    What multiplies a whole vector has the gradient Σ vector · gradient, wherever the vector is used.
    """
    of_q, of_k = (terms.q * of.q).sum(-1), (terms.k * of.k).sum(-1)
    for vector, gradient, total in (
        (terms.denominator_q, of.denominator_q, of_q),
        (terms.denominator_k, of.denominator_k, of_k),
    ):
        if vector is not None and gradient is not None:
            total += (vector * gradient).sum(-1)
    return of_q, of_k


def _put_inputs(
    gradients: Gradients, formula: Formula, call: Call, q: Tensor, k: Tensor, of: Gradients, at: Region
) -> None:
    """The gradients of what is mapped to ``q`` and ``k``, of values and of a denominator's own features; overwrites
    its arguments.
    """
    grad_q, grad_k = of.q, of.k
    if call.q_rotation is not None and call.k_rotation is not None:
        grad_q, grad_k = rotate(grad_q, _inverse(call.q_rotation)), rotate(grad_k, _inverse(call.k_rotation))
    if of.denominator_q is not None and of.denominator_k is not None:
        if gradients.denominator_q is not None and gradients.denominator_k is not None:
            gradients.denominator_q[at], gradients.denominator_k[at] = of.denominator_q, of.denominator_k
        else:
            grad_q.add_(of.denominator_q)
            grad_k.add_(of.denominator_k)
    if call.padding is not None:
        grad_k.masked_fill_(call.padding, 0)
    gradients.q[at] = formula.gradient(call.q, q, grad_q)
    gradients.k[at] = formula.gradient(call.k, k, grad_k)
    gradients.v[at] = of.v


def _rotation_at(rotation: Tensor | None, at: Region) -> Tensor | None:
    # One for all sequences, or one each.
    return None if rotation is None else rotation[slice(None) if rotation.shape[0] == 1 else at.batch, :, at.positions]


def _inverse(rotation: Tensor) -> Tensor:
    return torch.stack((rotation[..., 0], -rotation[..., 1]), dim=-1)


def _part(x: Tensor | None, *at: slice) -> Tensor | None:
    return None if x is None else x[at].contiguous()


def _weights_at(weights: Tensor, at: Region) -> Tensor:
    """(b, h, chunks, C, C), the weights inside the chunks of a region."""
    length = at.positions.stop - at.positions.start
    size = min(CHUNK_SIZE, length)
    return weights[at][..., :size].unflatten(2, (-1, size))


def _state_before(call: Call, result: Result, number: int, batch: slice, heads: slice) -> State | None:
    """The state before block ``number``."""
    if number == 0:
        return _state_at(call, batch, heads)
    kept = result.memories, result.key_sums, result.stabilisers
    return State(*(x[number - 1, batch, heads] if x.numel() else None for x in kept))  # type: ignore[arg-type]


def _state_at(call: Call, batch: slice, heads: slice) -> State | None:
    if call.memory is None:
        return None
    return State(call.memory[batch, heads], _part(call.key_sum, batch, heads), _part(call.stabiliser, batch, heads))


def _put_state(whole: Sequence[Tensor], state: State, index: tuple[int | slice, ...]) -> None:
    for to, part in zip(whole, state, strict=True):
        if part is not None:
            to[index] = part


def _groups(call: Call) -> list[tuple[slice, slice]]:
    """The sequences and heads that are worked on together."""
    batch, heads, length, _ = call.q.shape
    if heads == 0:
        return []
    elements = BLOCK_ELEMENTS.get(call.q.device.type, OTHER_BLOCK_ELEMENTS)
    rows = max(1, elements // (call.features * min(length, CHUNK_SIZE * BLOCK_CHUNKS)))
    if rows < heads:
        return [(slice(b, b + 1), slice(h, min(h + rows, heads))) for b in range(batch) for h in range(0, heads, rows)]
    step = rows // heads
    return [(slice(b, min(b + step, batch)), slice(0, heads)) for b in range(0, batch, step)]
