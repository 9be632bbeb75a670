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

from linear_rope.ops.linear.triton_form import backward, fading, maps, rotation, state, terms, tiles
from linear_rope.ops.linear.triton_form.tiles import NOTHING


@triton.jit
def sum_keys(call, sums, rows, chunks_of_piece):
    """One piece of one row: S, z and c of its keys, into States (pieces, rows)."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    batch, head = row // call.heads, row % call.heads
    projection, rest = maps.held_projection(call)
    memory = tl.zeros([call.BLOCK_M, call.BLOCK_V], tl.float32)
    normaliser = tl.zeros([call.BLOCK_M], tl.float32)
    largest = tl.full([], NOTHING, tl.float32)
    first = piece * chunks_of_piece
    columns = tl.arange(0, call.BLOCK_V)
    for n in range(0, tl.minimum(call.chunks - first, chunks_of_piece)):
        start = (first + n) * call.C
        mapped, log_scale = terms.map_keys(call, projection, rest, batch, head, row, start)
        keys = rotation.rotated_keys(call, mapped, batch, start)
        v = state.load_values(call, call.v, batch, head, start, columns)
        summed = terms.summed_keys(call, mapped, keys, batch, head, start)
        if call.HAS_SCALE:
            before = largest
            largest = tl.maximum(before, tl.max(log_scale, 0))
            enter, kept = tl.exp(log_scale - largest), tl.exp(before - largest)
            keys, summed = keys * enter[:, None], summed * enter[:, None]
            memory, normaliser = memory * kept, normaliser * kept
        memory += tiles.product(tl.trans(keys), v, call.DTYPE, call.PRECISION)
        normaliser += tl.sum(summed, 0)
    state.store_state(call, sums, piece * rows + row, memory, normaliser, largest)


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
    _chunk, row, batch, head, start = tiles.chunk_of_program(call)
    q, query_scale = terms.map_queries(call, *maps.held_projection(call), batch, head, row, start)
    turned_q = rotation.rotated_queries(call, q, batch, start)
    total, nothing = tl.zeros([call.C], tl.float32), tl.zeros([call.C], tl.float32)
    if call.DENOMINATOR != "none":
        summed = terms.summed_queries(call, q, turned_q, batch, head, start)
        total = tl.sum(summed * state.load_normaliser(call, sums.normaliser, row)[None, :], 1)
        tiles.store_vector(total_out, row, start, call.length, total, call.C)
    scale = state.load_stabiliser(call, sums.stabiliser, row) + nothing
    gain = fading.gains(call, total, scale, nothing, query_scale)[:, None]
    turned_q = tiles.factor(call, turned_q)
    for first in range(0, call.V, call.VALUES):
        columns = first + tl.arange(0, call.VALUES)
        memory = state.load_memory(call, sums.memory, row, columns).to(call.DTYPE)
        numerator = tiles.product(turned_q, memory, call.DTYPE, call.PRECISION) * gain
        tiles.store_tile(output, batch, head, start, call.length, columns, numerator, call.C, call.V)


@triton.jit
def reader_gradients(call, sums, output, total, grad_output, grad_total, grad_q, grad_own, of_total_out, of_q):
    """One chunk of one row: gradients of its queries, and t̄ for those of the sums."""
    _chunk, row, batch, head, start = tiles.chunk_of_program(call)
    q, query_scale = terms.map_queries(call, *maps.held_projection(call), batch, head, row, start)
    gain = reader_gains(call, sums, total, query_scale, row, start)
    of_features = tl.zeros([call.C, call.BLOCK_M], tl.float32)
    of_read, normaliser = tl.zeros([call.C], tl.float32), tl.zeros([call.BLOCK_M], tl.float32)
    for first in range(0, call.V, call.VALUES):
        columns = first + tl.arange(0, call.VALUES)
        grad = backward.numerator_gradients(call, grad_output, gain, batch, head, start, columns)
        memory = state.load_memory(call, sums.memory, row, columns).to(call.DTYPE)
        of_features += tiles.product(grad, tl.trans(memory), call.DTYPE, call.PRECISION)
        if call.DENOMINATOR != "none":
            of_read -= tl.sum(grad * state.load_values(call, output, batch, head, start, columns).to(tl.float32), 1)

    if call.DENOMINATOR != "none":
        if grad_total is not None:
            of_read += tiles.load_vector(grad_total, row, start, call.length, call.C, 0.0)
        tiles.store_vector(of_total_out, row, start, call.length, of_read, call.C)
        normaliser = state.load_normaliser(call, sums.normaliser, row)
    of_summed = of_read[:, None] * normaliser[None, :]
    if call.DENOMINATOR == "shared":
        of_features += of_summed
    of_features = rotation.queries_rotated_back(call, of_features, batch, start)
    terms.store_gradients(
        call, call.q, call.denominator_q, grad_q, grad_own, of_q, batch, head, row, start, q, of_features, of_summed
    )


@triton.jit
def reader_gains(call, sums, total, query_scale, row, start):
    """(C,), the gains of a chunk's numerators."""
    nothing = tl.zeros([call.C], tl.float32)
    scale = state.load_stabiliser(call, sums.stabiliser, row) + nothing
    return backward.saved_gains(call, total, scale, nothing, query_scale, row, start)


@triton.jit
def gradients_of_sums(call, sums, total, grad_output, of_total, of_sums, rows, chunks_of_piece):
    """One piece of one row: S̄ and z̄ of its queries, into States (pieces, rows)."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    batch, head = row // call.heads, row % call.heads
    projection, rest = maps.held_projection(call)
    of_memory = tl.zeros([call.BLOCK_M, call.BLOCK_V], tl.float32)
    of_normaliser = tl.zeros([call.BLOCK_M], tl.float32)
    first = piece * chunks_of_piece
    for n in range(0, tl.minimum(call.chunks - first, chunks_of_piece)):
        start = (first + n) * call.C
        mapped, query_scale = terms.map_queries(call, projection, rest, batch, head, row, start)
        q = rotation.rotated_queries(call, mapped, batch, start)
        gain = reader_gains(call, sums, total, query_scale, row, start)
        grad = backward.numerator_gradients(call, grad_output, gain, batch, head, start, tl.arange(0, call.BLOCK_V))
        of_memory += tiles.product(tl.trans(q), grad, call.DTYPE, call.PRECISION)
        if call.DENOMINATOR != "none":
            summed = terms.summed_queries(call, mapped, q, batch, head, start)
            of_normaliser += tl.sum(
                summed * tiles.load_vector(of_total, row, start, call.length, call.C, 0.0)[:, None], 0
            )
    state.store_state(call, of_sums, piece * rows + row, of_memory, of_normaliser, 0.0)


@triton.jit
def summand_gradients(call, sums, of_sums, grad_k, grad_v, grad_own, of_k):
    """One chunk of one row: gradients of its keys and values."""
    _chunk, row, batch, head, start = tiles.chunk_of_program(call)
    k, key_scale = terms.map_keys(call, *maps.held_projection(call), batch, head, row, start)
    there = tiles.is_key(call, batch, start)
    enter = tl.where(there, 1.0, 0.0)
    if call.HAS_SCALE:
        enter = tl.where(there, tl.exp(key_scale - state.load_stabiliser(call, sums.stabiliser, row)), 0.0)
    turned_k = tiles.factor(call, rotation.rotated_keys(call, k, batch, start))
    of_features = tl.zeros([call.C, call.BLOCK_M], tl.float32)
    for first in range(0, call.V, call.VALUES):
        columns = first + tl.arange(0, call.VALUES)
        of_memory = state.load_memory(call, of_sums.memory, row, columns).to(call.DTYPE)
        of_v = tiles.product(turned_k, of_memory, call.DTYPE, call.PRECISION) * enter[:, None]
        tiles.store_tile(grad_v, batch, head, start, call.length, columns, of_v, call.C, call.V)
        v = state.load_values(call, call.v, batch, head, start, columns)
        of_features += tiles.product(v, tl.trans(of_memory), call.DTYPE, call.PRECISION)
    of_features *= enter[:, None]
    of_normaliser = tl.zeros([call.BLOCK_M], tl.float32)
    if call.DENOMINATOR != "none":
        of_normaliser = state.load_normaliser(call, of_sums.normaliser, row)
    of_summed = enter[:, None] * of_normaliser[None, :]
    if call.DENOMINATOR == "shared":
        of_features += of_summed
    of_features = rotation.keys_rotated_back(call, of_features, batch, start)
    terms.store_gradients(
        call, call.k, call.denominator_k, grad_k, grad_own, of_k, batch, head, row, start, k, of_features, of_summed
    )
