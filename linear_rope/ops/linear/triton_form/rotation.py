"""The rotation of features, and of their gradients back. Axis names as in tiles.py."""

import triton
import triton.language as tl

from linear_rope.ops.linear.triton_form.tiles import tile_mask


@triton.jit
def load_rotation(call, table, table_batch, batch, start):
    """Cosines and sines, (C, BLOCK_M / 2) each."""
    feature, i = tl.arange(0, call.BLOCK_M), tl.arange(0, call.C)
    first = table + batch * table_batch + start * call.M
    inside = tile_mask(start, call.length, feature, call.C, call.M)
    turns = tl.load(first + i[:, None] * call.M + feature[None, :], mask=inside, other=0.0).to(tl.float32)
    return tl.split(tl.reshape(turns, (call.C, call.BLOCK_M // 2, 2)))


@triton.jit
def rotate(x, cosine, sine):
    """Turns each pair of neighbouring columns."""
    ROWS: tl.constexpr = x.shape[0]
    COLUMNS: tl.constexpr = x.shape[1]
    first, second = tl.split(tl.reshape(x, (ROWS, COLUMNS // 2, 2)))
    turned = tl.join(first * cosine - second * sine, first * sine + second * cosine)
    return tl.reshape(turned, (ROWS, COLUMNS))


@triton.jit
def load_query_rotation(call, batch, start):
    return load_rotation(call, call.q_rotation, call.q_rotation_batch, batch, start)


@triton.jit
def load_key_rotation(call, batch, start):
    if call.k_rotation is None:
        cosine, sine = load_query_rotation(call, batch, start)
    else:
        cosine, sine = load_rotation(call, call.k_rotation, call.k_rotation_batch, batch, start)
    return cosine, sine


@triton.jit
def rotated_queries(call, values, batch, start):
    if call.q_rotation is not None:
        cosine, sine = load_query_rotation(call, batch, start)
        values = rotate(values, cosine, sine)
    return values


@triton.jit
def queries_rotated_back(call, grad, batch, start):
    """The gradient of queries from that of rotated ones."""
    if call.q_rotation is not None:
        cosine, sine = load_query_rotation(call, batch, start)
        grad = rotate(grad, cosine, -sine)
    return grad


@triton.jit
def keys_rotated_back(call, grad, batch, start):
    if call.q_rotation is not None:
        cosine, sine = load_key_rotation(call, batch, start)
        grad = rotate(grad, cosine, -sine)
    return grad


@triton.jit
def rotated_keys(call, values, batch, start):
    if call.q_rotation is not None:
        cosine, sine = load_key_rotation(call, batch, start)
        values = rotate(values, cosine, sine)
    return values
