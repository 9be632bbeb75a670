"""Both passes where every query sees every key: two sums over the keys, which every query reads. No triangle, no decay.

With q and k mapped (and rotated), q' and k' those of the denominator, g_j the logarithm of key j's scale and c the
largest of all keys, which is 0 without scales,

    S = Σ_j exp(g_j − c) k_j v_jᵀ        numerator_i   = Sᵀq_i
    z = Σ_j exp(g_j − c) k'_j            denominator_i = z·q'_i

and with ō_i and t̄_i the gradients of numerator and denominator (the words of backward.py)

    q̄_i = S ō_i        S̄ = Σ_i q_i ō_iᵀ        k̄_j = exp(g_j − c) S̄ v_j        v̄_j = exp(g_j − c) S̄ᵀk_j
    q̄'_i = t̄_i z       z̄ = Σ_i t̄_i q'_i        k̄'_j = exp(g_j − c) z̄

A program sums one piece of a row, and the pieces are added one after the other; all else is a program a chunk. There
can be another number of keys than of queries: the length, the chunks and the rotation that a kernel takes are those of
what it goes through.
"""

import triton
import triton.language as tl

from linear_rope.ops.linear.triton_form.backward import numerator_gradients, store_own
from linear_rope.ops.linear.triton_form.shared import (
    NOTHING,
    gains,
    is_key,
    load_denominator_keys,
    load_denominator_queries,
    load_key_rotation,
    load_memory,
    load_normaliser,
    load_projection,
    load_query_rotation,
    load_stabiliser,
    load_tile,
    load_vector,
    map_keys,
    map_queries,
    product,
    rotate,
    rotated_keys,
    rotated_queries,
    store_map_gradient,
    store_memory,
    store_normaliser,
    store_tile,
    store_vector,
)


@triton.jit
def sum_keys(call, sums, rows, chunks_of_piece):
    """One piece of one row: S, z and c of its keys, into States (pieces, rows)."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    batch, head = row // call.heads, row % call.heads
    projection, rest = load_projection(call)
    memory = tl.zeros([call.BLOCK_M, call.BLOCK_V], tl.float32)
    normaliser = tl.zeros([call.BLOCK_M], tl.float32)
    largest = tl.full([], NOTHING, tl.float32)
    first = piece * chunks_of_piece
    columns = tl.arange(0, call.BLOCK_V)
    for n in range(0, tl.minimum(call.chunks - first, chunks_of_piece)):
        start = (first + n) * call.C
        mapped, log_scale = map_keys(call, projection, rest, batch, head, row, start)
        keys = rotated_keys(call, mapped, batch, start)
        v = load_tile(call.v, batch, head, start, call.length, columns, call.C, call.V)
        summed = mapped
        if call.DENOMINATOR == "shared":
            summed = keys
        if call.DENOMINATOR == "own":
            summed = load_denominator_keys(call, batch, head, start)
        if call.HAS_SCALE:
            before = largest
            largest = tl.maximum(before, tl.max(log_scale, 0))
            enter, kept = tl.exp(log_scale - largest), tl.exp(before - largest)
            keys, summed = keys * enter[:, None], summed * enter[:, None]
            memory, normaliser = memory * kept, normaliser * kept
        memory += product(tl.trans(keys), v, call.DTYPE, call.PRECISION)
        normaliser += tl.sum(summed, 0)
    store_sums(call, sums, piece * rows + row, memory, normaliser)
    if call.HAS_SCALE:
        tl.store(sums.stabiliser + piece * rows + row, largest.to(sums.stabiliser.dtype.element_ty))


@triton.jit
def store_sums(call, sums, place, memory, normaliser):
    store_memory(call, sums.memory, place, memory)
    if call.DENOMINATOR != "none":
        store_normaliser(call, sums.normaliser, place, normaliser)


@triton.jit
def add_pieces(numbers, stabiliser, to, stabiliser_to, rows, pieces, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The sum over pieces (pieces, rows, SIZE), those of S or z, relative to the largest exponent of all."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    largest = tl.full([], 0.0, tl.float32)
    if stabiliser is not None:
        largest = tl.full([], NOTHING, tl.float32)
        for n in range(0, pieces):
            largest = tl.maximum(largest, tl.load(stabiliser + n * rows + row))
        tl.store(stabiliser_to + row, largest.to(stabiliser_to.dtype.element_ty))
    total = tl.zeros([BLOCK], tl.float32)
    for n in range(0, pieces):
        place = n * rows + row
        added = tl.load(numbers + place * SIZE + at, mask=inside, other=0.0)
        if stabiliser is not None:
            added *= tl.exp(tl.load(stabiliser + place) - largest)
        total += added
    tl.store(to + row * SIZE + at, total, mask=inside)


@triton.jit
def read_sums(call, sums, output, total_out):
    """One chunk of one row: what its queries read."""
    pid = tl.program_id(0).to(tl.int64)
    row, start = pid // call.chunks, pid % call.chunks * call.C
    batch, head = row // call.heads, row % call.heads
    projection, rest = load_projection(call)
    q, query_scale = map_queries(call, projection, rest, batch, head, row, start)
    turned_q = rotated_queries(call, q, batch, start)
    total, nothing = tl.zeros([call.C], tl.float32), tl.zeros([call.C], tl.float32)
    if call.DENOMINATOR != "none":
        summed = q
        if call.DENOMINATOR == "shared":
            summed = turned_q
        if call.DENOMINATOR == "own":
            summed = load_denominator_queries(call, batch, head, start)
        total = tl.sum(summed * load_normaliser(call, sums.normaliser, row)[None, :], 1)
        store_vector(total_out, row, start, call.length, total, call.C)
    memory = load_memory(call, sums.memory, row).to(call.DTYPE)
    numerator = product(turned_q, memory, call.DTYPE, call.PRECISION)
    scale = load_stabiliser(call, sums.stabiliser, row) + nothing
    numerator *= gains(call, total, scale, nothing, query_scale)[:, None]
    columns = tl.arange(0, call.BLOCK_V)
    store_tile(output, batch, head, start, call.length, columns, numerator, call.C, call.V)


@triton.jit
def reader_gradients(call, sums, output, total, grad_output, grad_total, grad_q, grad_own, of_total_out, of_q):
    """One chunk of one row: gradients of its queries, and t̄ for those of the sums."""
    pid = tl.program_id(0).to(tl.int64)
    row, start = pid // call.chunks, pid % call.chunks * call.C
    batch, head = row // call.heads, row % call.heads
    projection, rest = load_projection(call)
    q, query_scale = map_queries(call, projection, rest, batch, head, row, start)
    grad = reader_numerator_gradients(call, sums, grad_output, total, query_scale, batch, head, row, start)
    memory = load_memory(call, sums.memory, row).to(call.DTYPE)
    of_features = product(grad, tl.trans(memory), call.DTYPE, call.PRECISION)

    of_read, normaliser = tl.zeros([call.C], tl.float32), tl.zeros([call.BLOCK_M], tl.float32)
    if call.DENOMINATOR != "none":
        columns = tl.arange(0, call.BLOCK_V)
        out = load_tile(output, batch, head, start, call.length, columns, call.C, call.V).to(tl.float32)
        of_read = -tl.sum(grad * out, 1)
        if grad_total is not None:
            of_read += load_vector(grad_total, row, start, call.length, call.C, 0.0)
        store_vector(of_total_out, row, start, call.length, of_read, call.C)
        normaliser = load_normaliser(call, sums.normaliser, row)
    of_summed = of_read[:, None] * normaliser[None, :]
    if call.DENOMINATOR == "shared":
        of_features += of_summed
    if call.q_rotation is not None:
        cosine, sine = load_query_rotation(call, batch, start)
        of_features = rotate(of_features, cosine, -sine)
    of_exponent = tl.zeros([call.C], tl.float32)
    if call.DENOMINATOR == "mapped":
        of_features += of_summed
    if call.DENOMINATOR == "own":
        store_own(call, grad_own, batch, head, start, of_summed)
        if of_q is not None:
            of_exponent = tl.sum(of_summed * load_denominator_queries(call, batch, head, start), 1)
    if of_q is not None:
        store_vector(of_q, row, start, call.length, of_exponent + tl.sum(of_features * q, 1), call.C)
    store_map_gradient(call, call.q, grad_q, batch, head, start, q, of_features)


@triton.jit
def reader_numerator_gradients(call, sums, grad_output, total, query_scale, batch, head, row, start):
    """ō (C, BLOCK_V)."""
    nothing = tl.zeros([call.C], tl.float32)
    scale = load_stabiliser(call, sums.stabiliser, row) + nothing
    return numerator_gradients(call, grad_output, total, scale, nothing, query_scale, batch, head, row, start)


@triton.jit
def gradients_of_sums(call, sums, total, grad_output, of_total, of_sums, rows, chunks_of_piece):
    """One piece of one row: S̄ and z̄ of its queries, into States (pieces, rows)."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    batch, head = row // call.heads, row % call.heads
    projection, rest = load_projection(call)
    of_memory = tl.zeros([call.BLOCK_M, call.BLOCK_V], tl.float32)
    of_normaliser = tl.zeros([call.BLOCK_M], tl.float32)
    first = piece * chunks_of_piece
    for n in range(0, tl.minimum(call.chunks - first, chunks_of_piece)):
        start = (first + n) * call.C
        mapped, query_scale = map_queries(call, projection, rest, batch, head, row, start)
        q = rotated_queries(call, mapped, batch, start)
        grad = reader_numerator_gradients(call, sums, grad_output, total, query_scale, batch, head, row, start)
        of_memory += product(tl.trans(q), grad, call.DTYPE, call.PRECISION)
        if call.DENOMINATOR != "none":
            summed = mapped
            if call.DENOMINATOR == "shared":
                summed = q
            if call.DENOMINATOR == "own":
                summed = load_denominator_queries(call, batch, head, start)
            of_normaliser += tl.sum(summed * load_vector(of_total, row, start, call.length, call.C, 0.0)[:, None], 0)
    store_sums(call, of_sums, piece * rows + row, of_memory, of_normaliser)


@triton.jit
def summand_gradients(call, sums, of_sums, grad_k, grad_v, grad_own, of_k):
    """One chunk of one row: gradients of its keys and values."""
    pid = tl.program_id(0).to(tl.int64)
    row, start = pid // call.chunks, pid % call.chunks * call.C
    batch, head = row // call.heads, row % call.heads
    projection, rest = load_projection(call)
    k, key_scale = map_keys(call, projection, rest, batch, head, row, start)
    there = is_key(call, batch, start)
    enter = tl.where(there, 1.0, 0.0)
    if call.HAS_SCALE:
        enter = tl.where(there, tl.exp(key_scale - load_stabiliser(call, sums.stabiliser, row)), 0.0)
    of_memory = load_memory(call, of_sums.memory, row).to(call.DTYPE)
    turned_k = rotated_keys(call, k, batch, start)
    columns = tl.arange(0, call.BLOCK_V)
    of_v = product(turned_k, of_memory, call.DTYPE, call.PRECISION) * enter[:, None]
    store_tile(grad_v, batch, head, start, call.length, columns, of_v, call.C, call.V)

    v = load_tile(call.v, batch, head, start, call.length, columns, call.C, call.V)
    of_features = product(v, tl.trans(of_memory), call.DTYPE, call.PRECISION) * enter[:, None]
    of_normaliser = tl.zeros([call.BLOCK_M], tl.float32)
    if call.DENOMINATOR != "none":
        of_normaliser = load_normaliser(call, of_sums.normaliser, row)
    of_summed = enter[:, None] * of_normaliser[None, :]
    if call.DENOMINATOR == "shared":
        of_features += of_summed
    if call.q_rotation is not None:
        cosine, sine = load_key_rotation(call, batch, start)
        of_features = rotate(of_features, cosine, -sine)
    of_exponent = tl.zeros([call.C], tl.float32)
    if call.DENOMINATOR == "mapped":
        of_features += of_summed
    if call.DENOMINATOR == "own":
        store_own(call, grad_own, batch, head, start, of_summed)
        if of_k is not None:
            of_exponent = tl.sum(of_summed * load_denominator_keys(call, batch, head, start), 1)
    if of_k is not None:
        store_vector(of_k, row, start, call.length, of_exponent + tl.sum(of_features * k, 1), call.C)
    store_map_gradient(call, call.k, grad_k, batch, head, start, k, of_features)
