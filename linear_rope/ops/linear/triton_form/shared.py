"""What both passes share: tiles of tensors, the feature maps and their derivatives, the rotation, and what fades.

Axis names: B batch, H heads, N positions, C positions of a chunk, D input width, M features, V value width. A row is
one head of one sequence, b·H + h. Tiles are as wide as a power of two, at least 16, with zeros beyond D, M and V.

A kernel takes its tensors and settings as one tuple, :class:`Inputs`. What is None, or is in capitals, is known when
the kernel is compiled, so that a branch on it costs nothing.
"""

import os
from typing import Any, NamedTuple

import triton
import triton.language as tl

SMALLEST_EXPONENT = tl.constexpr(-30.0)
"""of elu+1, as in linear_rope.features.elementwise"""
RESET = tl.constexpr(-1e4)
"""as in linear_rope.ops.decay"""
NOTHING = tl.constexpr(-1e30)
"""the exponent of what is not there: finite, so that differences of two are numbers"""
LARGEST_LOG_SCALE = tl.constexpr(60.0)
"""as in linear_rope.ops.linear.definition"""
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


class Rows(NamedTuple):
    """A tensor (B, H, N, width) and its strides."""

    data: Any
    batch: int
    head: int
    position: int
    channel: int


class Inputs(NamedTuple):
    """A call of the operator as kernels take it; those in capitals are ``tl.constexpr``.

    Attributes:
        q, k, v, denominator_q, denominator_k: as in :class:`linear_rope.ops.linear.call.Call`.
        query_scale, key_scale, log_decay: (B, H, N), contiguous.
        padding: (B, N) uint8, contiguous.
        q_rotation, k_rotation: (1 or B, N, M / 2, 2), contiguous; ``k_rotation`` is None where both are the same.
        q_rotation_batch, k_rotation_batch: strides of the batch; 0 for one of all.
        projection: (rows, D) of FAVOR+, with the factor D^−¼ of its inputs, in DTYPE.
        projection_rest: likewise what DTYPE does not hold of it; None where that is nothing.
        length: N.
        chunks: N / C, rounded up.
        heads: H.
        FORMULA, PAIRED, HYPERBOLIC, EPS: of the feature map.
        HALF_NORM, LOG_SIZE: 1 / (2√D) and ln M / 2, of the scale of FAVOR+.
        HAS_SCALE: whether keys have a scale.
        DENOMINATOR: "none"; "shared", the sum of the numerator's weights; "mapped", of features that are not rotated;
            "own", of ``denominator_q`` and ``denominator_k``.
        D, M, V: widths.
        INPUT_WIDTH: of the tile that is mapped: D for FAVOR+, else M.
        BLOCK_INPUT, BLOCK_M, BLOCK_V: of tiles.
        CHANNELS, VALUES: of the tiles that FAVOR+ projects, and that values are taken in, one after the other, so that
            registers hold them: of the map's inputs and of V.
        C: positions of a chunk.
        DTYPE: of the factors of matrix products, whose sums are float32.
        PRECISION: of products of float32, "ieee" or "tf32".
    """

    q: Rows
    k: Rows
    v: Rows
    denominator_q: Rows | None
    denominator_k: Rows | None
    query_scale: Any
    key_scale: Any
    log_decay: Any
    padding: Any
    q_rotation: Any
    k_rotation: Any
    q_rotation_batch: int
    k_rotation_batch: int
    projection: Any
    projection_rest: Any
    length: int
    chunks: int
    heads: int
    FORMULA: Any
    PAIRED: Any
    HYPERBOLIC: Any
    EPS: Any
    HALF_NORM: Any
    LOG_SIZE: Any
    HAS_SCALE: Any
    DENOMINATOR: Any
    D: Any
    M: Any
    V: Any
    INPUT_WIDTH: Any
    BLOCK_INPUT: Any
    BLOCK_M: Any
    BLOCK_V: Any
    CHANNELS: Any
    VALUES: Any
    C: Any
    DTYPE: Any
    PRECISION: Any


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
def product(a, b, DTYPE: tl.constexpr, PRECISION: tl.constexpr):
    """The matrix product of factors in DTYPE, summed in float32."""
    a, b = a.to(DTYPE), b.to(DTYPE)
    if INTERPRETED:  # whose products of bfloat16 are those of its bits as integers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def factor(call, x):
    """x in DTYPE as a factor of products, computed once: else the compiler computes it in each warp that needs it.

    On sm_80 each of eight warps turned all of a chunk's keys by itself, and held them in 128 registers of a thread.
    Not for the kernels of states: Triton 3.8 cannot pipeline a loop with it for sm_100.
    """
    x = x.to(call.DTYPE)
    if not INTERPRETED:  # what it cannot look into it does not repeat
        IN_32_BITS: tl.constexpr = 1 if call.DTYPE == tl.float32 else 2
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], x.dtype, is_pure=False, pack=IN_32_BITS)
    return x


@triton.jit
def tile_addresses(x, batch, head, start, columns, C: tl.constexpr):
    """Of C positions from ``start`` on."""
    i = tl.arange(0, C)
    first = x.data + batch * x.batch + head * x.head + start * x.position
    return first + i[:, None] * x.position + columns[None, :] * x.channel


@triton.jit
def tile_mask(start, length, columns, C: tl.constexpr, WIDTH: tl.constexpr):
    """What of a tile is in the tensor."""
    inside = (start + tl.arange(0, C) < length)[:, None]
    if WIDTH % columns.shape[0] != 0:
        inside = inside & (columns < WIDTH)[None, :]
    return inside


@triton.jit
def load_tile(x, batch, head, start, length, columns, C: tl.constexpr, WIDTH: tl.constexpr):
    """(C, columns) of a tensor's positions from ``start`` on, zero outside it."""
    addresses = tile_addresses(x, batch, head, start, columns, C)
    return tl.load(addresses, mask=tile_mask(start, length, columns, C, WIDTH), other=0.0)


@triton.jit
def store_tile(x, batch, head, start, length, columns, values, C: tl.constexpr, WIDTH: tl.constexpr):
    addresses = tile_addresses(x, batch, head, start, columns, C)
    tl.store(addresses, values.to(x.data.dtype.element_ty), mask=tile_mask(start, length, columns, C, WIDTH))


@triton.jit
def load_vector(x, row, start, length, C: tl.constexpr, missing: tl.constexpr):
    """(C,) float32 of (B·H, N), ``missing`` beyond N."""
    at = start + tl.arange(0, C)
    return tl.load(x + row * length + at, mask=at < length, other=missing).to(tl.float32)


@triton.jit
def store_vector(x, row, start, length, values, C: tl.constexpr):
    at = start + tl.arange(0, C)
    tl.store(x + row * length + at, values.to(x.dtype.element_ty), mask=at < length)


@triton.jit
def is_key(call, batch, start):
    """(C,), whether there is a key: neither padding nor beyond N."""
    at = start + tl.arange(0, call.C)
    there = at < call.length
    if call.padding is not None:
        there = there & (tl.load(call.padding + batch * call.length + at, mask=there, other=1) == 0)
    return there


# Feature maps: φ(x) = values · exp(log_scale), the formulas of linear_rope/features. Where each feature is used twice
# ("paired"), or each projection with both signs ("hyperbolic"), it is made twice: products are cheaper than moves.


@triton.jit
def load_inputs(call, x, batch, head, start):
    """The channel of each feature, (C, BLOCK_INPUT)."""
    columns = tl.arange(0, call.BLOCK_INPUT)
    if call.PAIRED:
        columns = columns // 2
        # As wide as D, so that the feature after the last is zero.
        x = load_tile(x, batch, head, start, call.length, columns, call.C, call.D)
    else:
        x = load_tile(x, batch, head, start, call.length, columns, call.C, call.INPUT_WIDTH)
    return x


@triton.jit
def load_projection(call, start):
    """(CHANNELS, BLOCK_M), channels from ``start`` on, a column for each feature, zero beyond D and M. And its rest.

    (A function of Triton 3.6 cannot return None: without a rest it is the projection again, which nobody reads.)
    """
    channel, feature = start + tl.arange(0, call.CHANNELS), tl.arange(0, call.BLOCK_M)
    row = feature
    if call.PAIRED:
        row = feature // 2
    if call.HYPERBOLIC:
        row = feature % (call.M // 2)
    inside = (channel < call.D)[:, None] & (feature < call.M)[None, :]
    at = row[None, :] * call.D + channel[:, None]
    projection = tl.load(call.projection + at, mask=inside, other=0.0)
    rest = projection
    if call.projection_rest is not None:
        rest = tl.load(call.projection_rest + at, mask=inside, other=0.0)
    return projection, rest


@triton.jit
def held_projection(call):
    """What a loop over chunks takes to :func:`map_keys`: all of the projection, or zeros if it is loaded in parts."""
    projection, rest = 0.0, 0.0
    if call.FORMULA == "favor+" and call.CHANNELS == call.BLOCK_INPUT:
        projection, rest = load_projection(call, 0)
    return projection, rest


@triton.jit
def projected(call, x, projection, rest):
    """x ω, as precise as float32: its exponential magnifies what rounding takes from ω."""
    if call.C == 1:  # a product has 16 rows and more; here ω is as the map has it
        root: tl.constexpr = (2 * call.HALF_NORM) ** 0.5
        exponent = tl.sum(tl.trans(x.to(tl.float32)) * projection.to(tl.float32), 0)[None, :] * root
    elif call.projection_rest is None:
        precision: tl.constexpr = "ieee" if call.PRECISION == "ieee" else "tf32x3"
        exponent = product(x, projection, call.DTYPE, precision)
    else:
        exponent = product(x, projection, call.DTYPE, "ieee") + product(x, rest, call.DTYPE, "ieee")
    return exponent


@triton.jit
def load_channels(call, x, batch, head, start, first):
    """Channels of C positions from ``first`` on."""
    return load_tile(x, batch, head, start, call.length, first + tl.arange(0, call.CHANNELS), call.C, call.D)


@triton.jit
def project(call, x, y, projection, rest, batch, head, start):
    """x ω (C, BLOCK_M) and x·x (C,) of a chunk, and the same of y unless it is None: ω is read once for both."""
    exponent, square = tl.zeros([call.C, call.BLOCK_M], tl.float32), tl.zeros([call.C], tl.float32)
    exponent_of_y, square_of_y = exponent, square
    for first in range(0, call.D, call.CHANNELS):
        block, rest_of_block = projection, rest
        if call.CHANNELS != call.BLOCK_INPUT:
            block, rest_of_block = load_projection(call, first)
        part = load_channels(call, x, batch, head, start, first)
        exponent += projected(call, part, block, rest_of_block)
        square += tl.sum(part.to(tl.float32) * part.to(tl.float32), 1)
        if y is not None:
            part = load_channels(call, y, batch, head, start, first)
            exponent_of_y += projected(call, part, block, rest_of_block)
            square_of_y += tl.sum(part.to(tl.float32) * part.to(tl.float32), 1)
    return exponent, square, exponent_of_y, square_of_y


@triton.jit
def with_signs(call, x):
    """Columns of the second half have the other sign, if the map is hyperbolic."""
    if call.HYPERBOLIC:
        x = tl.where((tl.arange(0, call.BLOCK_M) < call.M // 2)[None, :], x, -x)
    return x


@triton.jit
def mapped(call, x, y, projection, rest, batch, head, start):
    """Features (C, BLOCK_M) of a chunk and the logarithms of their scales (C,), float32; and of y unless it is None."""
    if call.FORMULA == "favor+":
        exponent, square, exponent_of_y, square_of_y = project(call, x, y, projection, rest, batch, head, start)
        values, log_scale = favor_features(call, exponent, square)
        values_of_y, log_scale_of_y = values, log_scale
        if y is not None:
            values_of_y, log_scale_of_y = favor_features(call, exponent_of_y, square_of_y)
    else:
        _, values = map_inputs(call, x, batch, head, start)
        log_scale = tl.zeros([call.C], tl.float32)
        values_of_y, log_scale_of_y = values, log_scale
        if y is not None:
            _, values_of_y = map_inputs(call, y, batch, head, start)
    return values, log_scale, values_of_y, log_scale_of_y


@triton.jit
def favor_features(call, exponent, square):
    feature = tl.arange(0, call.BLOCK_M)
    exponent = with_signs(call, exponent)
    if call.M != call.BLOCK_M:
        exponent = tl.where((feature < call.M)[None, :], exponent, NOTHING)
    largest = tl.max(exponent, 1)
    values = tl.exp(exponent - largest[:, None]) + call.EPS
    if call.M != call.BLOCK_M:
        values = tl.where((feature < call.M)[None, :], values, 0.0)
    return values, largest - call.HALF_NORM * square - call.LOG_SIZE


@triton.jit
def map_inputs(call, x, batch, head, start):
    """Inputs and features of a map that takes each number by itself, or given ones; float32."""
    wide = load_inputs(call, x, batch, head, start).to(tl.float32)
    if call.FORMULA == "elu+1":
        values = tl.exp(tl.minimum(tl.maximum(wide, SMALLEST_EXPONENT), 0.0)) + tl.maximum(wide, 0.0)
    elif call.FORMULA == "relu":
        values = tl.maximum(wide, 0.0) + call.EPS
    else:
        values = wide
    if call.M != call.BLOCK_M:
        values = tl.where((tl.arange(0, call.BLOCK_M) < call.M)[None, :], values, 0.0)
    return wide, values


@triton.jit
def store_gradients(call, x, own, to, own_to, exponents_to, batch, head, row, start, values, grad, of_summed):
    """Gradients of a chunk's queries or keys x, of a denominator's own features, and those of the exponents (C,).

    Args:
        values: the features, of FAVOR+; of other maps they are made again here, which is cheaper than to keep them.
        grad: gradient of the features, before they are rotated.
        of_summed: that of the denominator's, if it is not "shared".
    """
    if call.FORMULA != "favor+":
        wide, values = map_inputs(call, x, batch, head, start)
    of_exponent = tl.zeros([call.C], tl.float32)
    if call.DENOMINATOR == "mapped":
        grad += of_summed
    if call.DENOMINATOR == "own":
        feature = tl.arange(0, call.BLOCK_M)
        store_tile(own_to, batch, head, start, call.length, feature, of_summed, call.C, call.M)
        if exponents_to is not None:
            of_exponent = tl.sum(of_summed * load_own(call, own, batch, head, start), 1)
    if exponents_to is not None:
        store_vector(exponents_to, row, start, call.length, of_exponent + tl.sum(grad * values, 1), call.C)
    if call.FORMULA == "favor+":
        store_favor_gradient(call, x, to, batch, head, start, values, grad)
    else:
        if call.FORMULA == "elu+1":
            grad = tl.where(wide < SMALLEST_EXPONENT, 0.0, grad * tl.minimum(values, 1.0))
        elif call.FORMULA == "relu":
            grad = tl.where(wide > 0, grad, 0.0)
        columns = tl.arange(0, call.BLOCK_INPUT)
        if call.PAIRED:
            grad = tl.sum(tl.reshape(grad, (call.C, call.BLOCK_INPUT // 2, 2)), 2)
            columns = tl.arange(0, call.BLOCK_INPUT // 2)
        store_tile(to, batch, head, start, call.length, columns, grad, call.C, call.D)


@triton.jit
def store_favor_gradient(call, x, to, batch, head, start, values, grad):
    """The gradient of inputs from that of features, in which that of the scale is Σ values · grad.

    With h = ωx' and m = max h the values are exp(h − m) + ε. ε stays where it is when h moves with m: of its gradient
    only what the scale's m has is left.
    """
    feature = tl.arange(0, call.BLOCK_M)
    if call.M != call.BLOCK_M:
        grad = tl.where((feature < call.M)[None, :], grad, 0.0)
    of_eps = call.EPS * tl.sum(grad, 1)
    is_largest = feature[None, :] == tl.argmax(values, 1)[:, None]
    grad = grad * (values - call.EPS) + tl.where(is_largest, of_eps[:, None], 0.0)
    total = (2 * call.HALF_NORM) * tl.sum(grad, 1)
    grad = with_signs(call, grad).to(call.DTYPE)
    for first in range(0, call.D, call.CHANNELS):
        projection, _ = load_projection(call, first)
        of_part = product(grad, tl.trans(projection), call.DTYPE, call.PRECISION)
        of_part -= total[:, None] * load_channels(call, x, batch, head, start, first).to(tl.float32)
        columns = first + tl.arange(0, call.CHANNELS)
        store_tile(to, batch, head, start, call.length, columns, of_part, call.C, call.D)


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


@triton.jit
def map_queries(call, projection, rest, batch, head, row, start):
    """Features and log scales of a chunk's queries."""
    values, log_scale, _, _ = mapped(call, call.q, None, projection, rest, batch, head, start)
    return values, query_scales(call, log_scale, row, start)


@triton.jit
def query_scales(call, log_scale, row, start):
    if call.query_scale is not None:
        log_scale = load_vector(call.query_scale, row, start, call.length, call.C, 0.0)
    return log_scale


@triton.jit
def map_keys(call, projection, rest, batch, head, row, start):
    """Likewise of its keys, whose features are zero where there is none."""
    values, log_scale, _, _ = mapped(call, call.k, None, projection, rest, batch, head, start)
    return keys_there(call, values, log_scale, batch, row, start)


@triton.jit
def keys_there(call, values, log_scale, batch, row, start):
    there = is_key(call, batch, start)
    if call.key_scale is not None:
        log_scale = load_vector(call.key_scale, row, start, call.length, call.C, NOTHING)
    return tl.where(there[:, None], values, 0.0), tl.where(there, tl.maximum(log_scale, NOTHING), NOTHING)


@triton.jit
def map_both(call, batch, head, row, start):
    """Of its keys, then of its queries."""
    projection, rest = held_projection(call)
    k, key_scale, q, query_scale = mapped(call, call.k, call.q, projection, rest, batch, head, start)
    k, key_scale = keys_there(call, k, key_scale, batch, row, start)
    return k, key_scale, q, query_scales(call, query_scale, row, start)


@triton.jit
def load_own(call, x, batch, head, start):
    """A denominator's own features of a chunk, (C, BLOCK_M) float32."""
    feature = tl.arange(0, call.BLOCK_M)
    return load_tile(x, batch, head, start, call.length, feature, call.C, call.M).to(tl.float32)


@triton.jit
def load_own_keys(call, batch, head, start):
    """Those of keys, zero where there is none."""
    return tl.where(is_key(call, batch, start)[:, None], load_own(call, call.denominator_k, batch, head, start), 0.0)


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


# What fades. Weights are multiplied by exp(g_j + L_i − L_j − c_i), as definition.py has it. Exponents of
# a chunk are relative to the position before it: s_j = g_j − L_j of keys, u_i = c_i − L_i of queries, and a state has
# the stabiliser c as it is after its last key. Every factor is the exponential of a difference that is at most 0.


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


# States.


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
