"""Feature maps and their derivatives: φ(x) = values · exp(log_scale), the formulas of linear_rope/features.

Where each feature is used twice ("paired"), or each projection with both signs ("hyperbolic"), it is made twice:
products are cheaper than moves. Axis names as in tiles.py.
"""

import triton
import triton.language as tl

from linear_rope.ops.linear.triton_form.tiles import NOTHING, load_tile, product, store_tile

SMALLEST_EXPONENT = tl.constexpr(-30.0)
"""of elu+1, as in linear_rope.features.elementwise"""


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
