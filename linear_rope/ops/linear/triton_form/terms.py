"""The queries and keys of a chunk as they are summed, and the way back from their gradients to those of the inputs.

Axis names as in tiles.py.
"""

import triton
import triton.language as tl

from linear_rope.ops.linear.triton_form import maps, tiles
from linear_rope.ops.linear.triton_form.maps import SMALLEST_EXPONENT
from linear_rope.ops.linear.triton_form.tiles import NOTHING


@triton.jit
def map_queries(call, projection, rest, batch, head, row, start):
    """Features and log scales of a chunk's queries."""
    values, log_scale, _, _ = maps.mapped(call, call.q, None, projection, rest, batch, head, start)
    return values, query_scales(call, log_scale, row, start)


@triton.jit
def query_scales(call, log_scale, row, start):
    if call.query_scale is not None:
        log_scale = tiles.load_vector(call.query_scale, row, start, call.length, call.C, 0.0)
    return log_scale


@triton.jit
def map_keys(call, projection, rest, batch, head, row, start):
    """Likewise of its keys, whose features are zero where there is none."""
    values, log_scale, _, _ = maps.mapped(call, call.k, None, projection, rest, batch, head, start)
    return keys_there(call, values, log_scale, batch, row, start)


@triton.jit
def keys_there(call, values, log_scale, batch, row, start):
    there = tiles.is_key(call, batch, start)
    if call.key_scale is not None:
        log_scale = tiles.load_vector(call.key_scale, row, start, call.length, call.C, NOTHING)
    return tl.where(there[:, None], values, 0.0), tl.where(there, tl.maximum(log_scale, NOTHING), NOTHING)


@triton.jit
def map_both(call, batch, head, row, start):
    """Of its keys, then of its queries."""
    projection, rest = maps.held_projection(call)
    k, key_scale, q, query_scale = maps.mapped(call, call.k, call.q, projection, rest, batch, head, start)
    k, key_scale = keys_there(call, k, key_scale, batch, row, start)
    return k, key_scale, q, query_scales(call, query_scale, row, start)


@triton.jit
def load_own(call, x, batch, head, start):
    """A denominator's own features of a chunk, (C, BLOCK_M) float32."""
    feature = tl.arange(0, call.BLOCK_M)
    return tiles.load_tile(x, batch, head, start, call.length, feature, call.C, call.M).to(tl.float32)


@triton.jit
def load_own_keys(call, batch, head, start):
    """Those of keys, zero where there is none."""
    return tl.where(
        tiles.is_key(call, batch, start)[:, None], load_own(call, call.denominator_k, batch, head, start), 0.0
    )


@triton.jit
def summed_queries(call, values, turned, batch, head, start):
    """The features of queries that the denominator sums."""
    if call.DENOMINATOR == "shared":
        values = turned
    if call.DENOMINATOR == "own":
        values = load_own(call, call.denominator_q, batch, head, start)
    return values


@triton.jit
def summed_keys(call, values, turned, batch, head, start):
    """Likewise of keys."""
    if call.DENOMINATOR == "shared":
        values = turned
    if call.DENOMINATOR == "own":
        values = load_own_keys(call, batch, head, start)
    return values


@triton.jit
def store_gradients(call, x, own, to, own_to, exponents_to, batch, head, row, start, values, grad, of_summed):
    """Gradients of a chunk's queries or keys x, of a denominator's own features, and those of the exponents (C,).

    Args:
        values: the features, of FAVOR+; of other maps they are made again here, which is cheaper than to keep them.
        grad: gradient of the features, before they are rotated.
        of_summed: that of the denominator's, if it is not "shared".
    """
    if call.FORMULA != "favor+":
        wide, values = maps.map_inputs(call, x, batch, head, start)
    of_exponent = tl.zeros([call.C], tl.float32)
    if call.DENOMINATOR == "mapped":
        grad += of_summed
    if call.DENOMINATOR == "own":
        feature = tl.arange(0, call.BLOCK_M)
        tiles.store_tile(own_to, batch, head, start, call.length, feature, of_summed, call.C, call.M)
        if exponents_to is not None:
            of_exponent = tl.sum(of_summed * load_own(call, own, batch, head, start), 1)
    if exponents_to is not None:
        tiles.store_vector(exponents_to, row, start, call.length, of_exponent + tl.sum(grad * values, 1), call.C)
    if call.FORMULA == "favor+":
        maps.store_favor_gradient(call, x, to, batch, head, start, values, grad)
    else:
        if call.FORMULA == "elu+1":
            grad = tl.where(wide < SMALLEST_EXPONENT, 0.0, grad * tl.minimum(values, 1.0))
        elif call.FORMULA == "relu":
            grad = tl.where(wide > 0, grad, 0.0)
        columns = tl.arange(0, call.BLOCK_INPUT)
        if call.PAIRED:
            grad = tl.sum(tl.reshape(grad, (call.C, call.BLOCK_INPUT // 2, 2)), 2)
            columns = tl.arange(0, call.BLOCK_INPUT // 2)
        tiles.store_tile(to, batch, head, start, call.length, columns, grad, call.C, call.D)
