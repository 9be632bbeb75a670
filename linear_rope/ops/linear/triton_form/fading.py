"""What fades: weights are multiplied by exp(g_j + L_i − L_j − c_i), as definition.py has it.

Exponents of a chunk are relative to the position before it: s_j = g_j − L_j of keys, u_i = c_i − L_i of queries, and a
state has the stabiliser c as it is after its last key. Every factor is the exponential of a difference that is at most
0. Axis names as in tiles.py.
"""

import triton
import triton.language as tl

from linear_rope.ops.linear.triton_form.tiles import NOTHING, load_vector

RESET = tl.constexpr(-1e4)
"""as in linear_rope.ops.decay"""
LARGEST_LOG_SCALE = tl.constexpr(60.0)
"""as in linear_rope.ops.linear.definition"""


@triton.jit
def fading(call, row, start):
    """L_i (C,) since the position before the chunk, and the number of resets since then; zeros without a decay."""
    if call.log_decay is None:
        faded, segment = tl.zeros([call.C], tl.float32), tl.zeros([call.C], tl.int32)
    else:
        logs = load_vector(call.log_decay, row, start, call.length, call.C, 0.0)
        is_reset = logs <= RESET
        faded = tl.cumsum(tl.where(is_reset, 0.0, logs), 0)
        segment = tl.cumsum(is_reset.to(tl.int32), 0)
    return faded, segment


@triton.jit
def query_exponents(call, key, faded, segment, before):
    """u_i: the largest exponent of the keys that query i sees, the state's among them; −L_i without scales."""
    if call.HAS_SCALE:
        i = tl.arange(0, call.C)
        seen = (i[:, None] >= i[None, :]) & (segment[:, None] == segment[None, :])
        largest = tl.max(tl.where(seen, key[None, :], NOTHING), 1)
        exponent = tl.where(segment == 0, tl.maximum(largest, before), largest)
    else:
        exponent = -faded
    return exponent


@triton.jit
def pair_factors(call, key, query, segment, QUERY_AXIS: tl.constexpr):
    """(C, C) exp(s_j − u_i) for keys up to each query and in its segment, else zero."""
    i = tl.arange(0, call.C)
    seen = tl.expand_dims(i, 1 - QUERY_AXIS) >= tl.expand_dims(i, QUERY_AXIS)
    if call.HAS_SCALE or call.log_decay is not None:
        seen = seen & (segment[:, None] == segment[None, :])
        exponent = tl.expand_dims(key, QUERY_AXIS) - tl.expand_dims(query, 1 - QUERY_AXIS)
        factors = tl.exp(tl.where(seen, exponent, float("-inf")))
    else:
        factors = tl.where(seen, 1.0, 0.0)
    return factors


@triton.jit
def read_factors(call, query, segment, before):
    """(C,) exp(c − u_i): how a query reads the state before its chunk."""
    return tl.exp(tl.where(segment == 0, before - query, float("-inf")))


@triton.jit
def enter_factors(call, key, faded, segment, after):
    """(C,) how a key enters the state after its chunk, whose stabiliser is ``after``."""
    total, last = tl.sum(tl.where(tl.arange(0, call.C) == call.C - 1, faded, 0.0), 0), tl.max(segment, 0)
    return tl.exp(tl.where(segment == last, key + (total - after), float("-inf")))


@triton.jit
def log_kept(call, faded, segment, before, after):
    """The logarithm of what is left of the state before a chunk after it."""
    total, last = tl.sum(tl.where(tl.arange(0, call.C) == call.C - 1, faded, 0.0), 0), tl.max(segment, 0)
    # In float64, because what rounding takes here is multiplied chunk by chunk.
    kept = (before.to(tl.float64) + total.to(tl.float64) - after.to(tl.float64)).to(tl.float32)
    return tl.where(last == 0, kept, float("-inf"))


@triton.jit
def stabiliser_after(call, query, faded):
    """c after the chunk: of the state is left what its last position sees."""
    last = tl.arange(0, call.C) == call.C - 1
    return tl.sum(tl.where(last, query + faded, 0.0), 0)


@triton.jit
def gains(call, total, query, faded, query_scale):
    """What sums are multiplied by to become outputs: 1 / denominator, zero where that is, or exp(c_i + query_scale)."""
    if call.DENOMINATOR != "none":
        gain = tl.where(total == 0, 0.0, 1.0 / tl.where(total == 0, 1.0, total))
    elif call.HAS_SCALE:
        gain = tl.exp(tl.minimum(query + faded + query_scale, LARGEST_LOG_SCALE))
    elif call.query_scale is not None:
        gain = tl.exp(tl.minimum(query_scale, LARGEST_LOG_SCALE))
    else:
        gain = tl.full([call.C], 1.0, tl.float32)
    return gain
