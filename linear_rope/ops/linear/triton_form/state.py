"""States: memory, normaliser and stabiliser, loaded and stored. Axis names as in tiles.py."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from linear_rope.ops.linear.triton_form.tiles import NOTHING, load_tile


class States(NamedTuple):
    """Memory, normaliser and stabiliser (or its gradient) at several places of every row, float32 unless noted.

    Attributes:
        memory: (places, B·H, M, V), also in the dtype of the products' factors.
        normaliser: (places, B·H, M), or None.
        stabiliser: (places, B·H), or None: of states of sums, where keys have scales.
    """

    memory: Any
    normaliser: Any
    stabiliser: Any


@triton.jit
def memory_addresses(call, memory, place, columns):
    """Of a state's numbers (BLOCK_M, columns), and which of them there are."""
    m = tl.arange(0, call.BLOCK_M)
    inside = (m < call.M)[:, None] & (columns < call.V)[None, :]
    return memory + place * (call.M * call.V) + m[:, None] * call.V + columns[None, :], inside


@triton.jit
def load_memory(call, memory, place, columns):
    addresses, inside = memory_addresses(call, memory, place, columns)
    return tl.load(addresses, mask=inside, other=0.0)


@triton.jit
def store_memory(call, memory, place, values):
    addresses, inside = memory_addresses(call, memory, place, tl.arange(0, call.BLOCK_V))
    tl.store(addresses, values.to(memory.dtype.element_ty), mask=inside)


@triton.jit
def load_values(call, x, batch, head, start, columns):
    """(C, columns) of v, the output or its gradient."""
    return load_tile(x, batch, head, start, call.length, columns, call.C, call.V)


@triton.jit
def load_normaliser(call, normaliser, place):
    m = tl.arange(0, call.BLOCK_M)
    return tl.load(normaliser + place * call.M + m, mask=m < call.M, other=0.0).to(tl.float32)


@triton.jit
def store_normaliser(call, normaliser, place, values):
    m = tl.arange(0, call.BLOCK_M)
    tl.store(normaliser + place * call.M + m, values, mask=m < call.M)


@triton.jit
def load_stabiliser(call, stabiliser, place):
    """c, 0 without scales."""
    if stabiliser is None:
        c = tl.full([], 0.0, tl.float32)
    else:
        c = tl.maximum(tl.load(stabiliser + place), NOTHING).to(tl.float32)
    return c


@triton.jit
def load_state(call, states, place):
    """Memory, normaliser and stabiliser, float32; where there is none, those of no keys."""
    memory, normaliser = tl.zeros([call.BLOCK_M, call.BLOCK_V], tl.float32), tl.zeros([call.BLOCK_M], tl.float32)
    stabiliser = tl.full([], NOTHING if call.HAS_SCALE else 0.0, tl.float32)
    if states.memory is not None:
        memory = load_memory(call, states.memory, place, tl.arange(0, call.BLOCK_V)).to(tl.float32)
    if states.normaliser is not None:
        normaliser = load_normaliser(call, states.normaliser, place)
    if states.stabiliser is not None:
        stabiliser = load_stabiliser(call, states.stabiliser, place)
    return memory, normaliser, stabiliser


@triton.jit
def store_state(call, states, place, memory, normaliser, stabiliser):
    """What of it there is a place for."""
    if states.memory is not None:
        store_memory(call, states.memory, place, memory)
    if states.normaliser is not None:
        store_normaliser(call, states.normaliser, place, normaliser)
    if states.stabiliser is not None:
        tl.store(states.stabiliser + place, stabiliser.to(states.stabiliser.dtype.element_ty))
