"""Causal linear attention block after block, from the inputs, so that nothing as wide as the features is kept.

Forward maps a block of positions, sums it and keeps the output, the weights inside its chunks and the state before it.
Backward goes through the blocks from the last to the first, maps each again and differentiates it by hand. With blocks
of L positions it keeps O(D + C + M·D/L) numbers for each position and head, and the rotations, M for each position.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from linear_rope.features.base import Formula
from linear_rope.ops.linear.call import (
    Call,
    Gradients,
    Result,
    Upstream,
    by_decay,
    empty_gradients,
    exponent_of_state,
    new_exponents_of_states,
    put_exponents,
)
from linear_rope.ops.linear.call import empty_result as any_result
from linear_rope.ops.linear.chunked import BLOCK_CHUNKS, block_gradients, block_sums, blocks, chunk_size
from linear_rope.ops.linear.definition import attention_output
from linear_rope.ops.linear.rotated_features import rotated_features
from linear_rope.ops.linear.state import State
from linear_rope.positions.rotary import rotate

# Elements of the features of one block: 4 MB of float32 are about what a processor caches; a GPU wants large batches.
BLOCK_ELEMENTS = {"cpu": 2**20}
OTHER_BLOCK_ELEMENTS = 2**25
BY_POSITION = Call._fields[: Call._fields.index("memory")]
"""the tensors of a call whose third axis is that of positions"""
Carrier = TypeVar("Carrier", bound=tuple[Any, ...])


def _stretch(call: Call) -> int:
    """Positions of a block, but for the last two."""
    return BLOCK_CHUNKS * chunk_size(call)


def empty_result(call: Call, *, keep: bool) -> Result:
    """Memory for a result, with that for :func:`differentiate` if ``keep``."""
    if not keep:
        return any_result(call)
    batch, heads, length, _ = call.q.shape
    # An upper bound that a compiler can reckon with, and never 1: it would make an axis of one a case of its own.
    later, features, dtype = length // _stretch(call) + 2, call.features, call.dtype
    return any_result(
        call,
        weights=call.new(batch, heads, length, chunk_size(call), dtype=dtype),
        memories=call.new(later, batch, heads, features, call.v.shape[-1], dtype=dtype),
        key_sums=call.new(later, batch, heads, features, exists=call.has_denominator, dtype=dtype),
        stabilisers=call.new(later, batch, heads, 1, exists=call.has_scale, dtype=call.exact),
    )


def attend(call: Call, *, keep: bool) -> Result:
    """Forward; ``keep`` what :func:`differentiate` needs."""
    result, formula = empty_result(call, keep=keep), call.make_formula()
    for rows in _groups(call):
        own, to = _of_rows(call, rows), _of_rows(result, rows)
        state = _state_before(own, to, 0)
        for number, at in enumerate(blocks(call.q.shape[2], chunk_size(call))):
            if keep and number:
                _put_state([x[number - 1] if x.numel() else x for x in to[-3:]], state)
            features, *_ = _block(own, formula, at)
            sums, state, weights = block_sums(features, state)
            to.output[:, :, at] = attention_output(sums, features.query_scale)
            for x, part in zip((to.denominator, to.scale), sums[1:], strict=True):
                if part is not None:
                    x[:, :, at] = part
            if keep:
                kept = _weights_at(to.weights, at)
                kept.copy_(weights.view(kept.shape))
        _put_state([to.memory, to.key_sum, to.stabiliser], state)
    return result


def differentiate(call: Call, result: Result, of: Upstream) -> Gradients:
    """Backward."""
    gradients, formula = empty_gradients(call), call.make_formula()
    stretch = _stretch(call)
    of_states = new_exponents_of_states(call, result, of, stretch)
    of_positions = (2, *of_states.shape[:-1], call.q.shape[2])
    exponents = result.denominator.new_zeros(of_positions, dtype=call.dtype) if call.has_exponents else None
    stretches = list(enumerate(blocks(call.q.shape[2], chunk_size(call))))
    for rows in _groups(call):
        own, kept = _of_rows(call, rows), _of_rows(result, rows)
        above, to = _of_rows(of, rows), _of_rows(gradients, rows)
        after = None if above.memory is None else State(above.memory, above.key_sum, None)
        for number, at in reversed(stretches):
            if call.log_decay is not None and at.stop % stretch == 0 and number + 1 < len(stretches):
                of_states[rows][..., number : number + 1] = _exponent(own, after, _state_before(own, kept, number + 1))
            state = _state_before(own, kept, number)
            terms, given, mapped_q, mapped_k = _block(own, formula, at)
            denominator = kept.denominator[:, :, at] if call.has_denominator else None
            scale = kept.scale[:, :, at] if kept.scale.numel() else None
            grad_output = above.output[:, :, at].to(call.dtype)
            grad_sums = attention_output((grad_output, denominator, scale), terms.query_scale)
            of_denominator = None
            if call.has_denominator:
                of_denominator = -(grad_sums * kept.output[:, :, at]).sum(-1)
                if above.denominator is not None:
                    of_denominator += above.denominator[:, :, at]
            weights = _weights_at(kept.weights, at).flatten(0, 2)
            of_terms, after = block_gradients(terms, weights, state, grad_sums, of_denominator, after)
            if exponents is not None:
                exponents[0][rows][..., at], exponents[1][rows][..., at] = _exponents(terms, of_terms)
            _put_inputs(to, formula, given, mapped_q, mapped_k, of_terms, at)
        _put_state([to.memory, to.key_sum], after)
    if exponents is not None:
        put_exponents(gradients, call, exponents[0], exponents[1], of_states, stretch)
    return gradients


def _exponent(call: Call, grad: State | None, state: State | None) -> Tensor:
    """The gradient (b, h, 1), or (b, h, K, 1), of the exponent of a state, from that of the state."""
    assert grad is not None
    assert state is not None
    return exponent_of_state(call, grad.memory, state.memory, grad.key_sum, state.key_sum)


def _block(call: Call, formula: Formula, at: slice) -> tuple[Call, Call, Tensor, Tensor]:
    """What is summed of a block of positions, and what the formula maps, φ(q) and φ(k)."""
    given = {name: getattr(call, name) for name in BY_POSITION}
    part = call._replace(**{name: x[:, :, at].contiguous() for name, x in given.items() if x is not None})
    q, k, v = (x.to(call.dtype) for x in part[:3])
    part = part._replace(q=q, k=k, v=v)
    of_q, of_k = formula.features(q), formula.features(k)
    return rotated_features(part, of_q, of_k, v), part, of_q.values, of_k.values


def _exponents(terms: Call, of: Gradients) -> tuple[Tensor, Tensor]:
    """The gradients (B, H, L), or (B, H, K, L), of each query's, and of each key's, own exponent.

    What multiplies a whole vector has the gradient Σ vector · gradient, wherever the vector is used.
    """
    below_q = below_k = None
    if terms.denominator_q is not None and terms.denominator_k is not None:
        assert of.denominator_q is not None
        assert of.denominator_k is not None
        below_q, below_k = terms.denominator_q * of.denominator_q, terms.denominator_k * of.denominator_k
    return by_decay(terms, terms.q * of.q, below_q), by_decay(terms, terms.k * of.k, below_k)


def _put_inputs(to: Gradients, formula: Formula, call: Call, q: Tensor, k: Tensor, of: Gradients, at: slice) -> None:
    """The gradients of what is mapped to ``q`` and ``k``, of values and of a denominator's own features; overwrites
    its arguments.
    """
    grad_q, grad_k = of.q, of.k
    if call.q_rotation is not None and call.k_rotation is not None:
        grad_q, grad_k = rotate(grad_q, _inverse(call.q_rotation)), rotate(grad_k, _inverse(call.k_rotation))
    if of.denominator_q is not None and of.denominator_k is not None:
        if to.denominator_q is not None and to.denominator_k is not None:
            to.denominator_q[:, :, at], to.denominator_k[:, :, at] = of.denominator_q, of.denominator_k
        else:
            grad_q.add_(of.denominator_q)
            grad_k.add_(of.denominator_k)
    if call.padding is not None:
        grad_k.masked_fill_(call.padding, 0)
    to.q[:, :, at] = formula.gradient(call.q, q, grad_q)
    to.k[:, :, at] = formula.gradient(call.k, k, grad_k)
    to.v[:, :, at] = of.v


def _inverse(rotation: Tensor) -> Tensor:
    return torch.stack((rotation[..., 0], -rotation[..., 1]), dim=-1)


def _weights_at(weights: Tensor, at: slice) -> Tensor:
    """(b, h, chunks, C, C), the weights inside the chunks of a block."""
    size = min(weights.shape[-1], at.stop - at.start)
    return weights[:, :, at, :size].unflatten(2, (-1, size))


def _state_before(call: Call, result: Result, number: int) -> State | None:
    """The state before block ``number``."""
    if number == 0:
        return None if call.memory is None else State(call.memory, call.key_sum, call.stabiliser)
    return State(*(x[number - 1] if x.numel() else None for x in result[-3:]))  # type: ignore[arg-type]


def _put_state(to: Sequence[Tensor | None], state: State | None) -> None:
    assert state is not None
    for x, part in zip(to, state, strict=False):
        if x is not None and part is not None:
            x.copy_(part)


def _groups(call: Call) -> list[tuple[slice, slice]]:
    """The sequences and heads that are worked on together."""
    batch, heads, length, _ = call.q.shape
    if heads == 0:
        return []
    elements = BLOCK_ELEMENTS.get(call.q.device.type, OTHER_BLOCK_ELEMENTS)
    rows = max(1, elements // (call.features * min(length, _stretch(call))))
    if rows < heads:
        return [(slice(b, b + 1), slice(h, min(h + rows, heads))) for b in range(batch) for h in range(0, heads, rows)]
    step = rows // heads
    return [(slice(b, min(b + step, batch)), slice(0, heads)) for b in range(0, batch, step)]


def _of_rows(given: Carrier, rows: tuple[slice, slice]) -> Carrier:
    """What some sequences and heads have of a call, a result or gradients: views."""

    def part(name: str, x: Any) -> Any:
        if not isinstance(x, Tensor) or name == "constant" or x.dim() == 1:  # what there is not is an empty vector
            return x
        if name in ("memories", "key_sums", "stabilisers"):
            return x[:, rows[0], rows[1]]
        if name == "padding" or name.endswith("rotation"):  # of all heads, and maybe of all sequences
            return x if x.shape[0] == 1 else x[rows[0]]
        return x[rows]

    return type(given)(*(part(name, x) for name, x in zip(given._fields, given, strict=True)))  # type: ignore[attr-defined]
