"""What kernels take, and how they load, multiply and store tiles of it.

Axis names: B batch, H heads, N positions, C positions of a chunk, D input width, M features, V value width. A row is
one head of one sequence, b·H + h. Tiles are as wide as a power of two, at least 16, with zeros beyond D, M and V.

A kernel takes its tensors and settings as one tuple, :class:`Inputs`. What is None, or is in capitals, is known when
the kernel is compiled, so that a branch on it costs nothing.
"""

import os
from typing import Any, NamedTuple

import triton
import triton.language as tl

NOTHING = tl.constexpr(-1e30)
"""the exponent of what is not there: finite, so that differences of two are numbers"""
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


@triton.jit
def chunk_of_program(call):
    """Of a program that takes one chunk: the chunk, the row, its sequence and head, and the chunk's first position."""
    pid = tl.program_id(0).to(tl.int64)
    chunk, row = pid % call.chunks, pid // call.chunks
    return chunk, row, row // call.heads, row % call.heads, chunk * call.C


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
