"""The forward pass: the states before chunks, one after the other, then the outputs of all chunks beside each other.

With q and k mapped (and rotated), q' and k' those of the denominator, P the factors of pairs and s_j, u_i, c the
exponents of fading.py, a chunk after the state (S, z, c) gives

    numerator_i   = Σ_{j ≤ i} P_ij (q_i·k_j) v_j  +  exp(c − u_i) Sᵀq_i
    denominator_i = Σ_{j ≤ i} P_ij (q'_i·k'_j)    +  exp(c − u_i) z·q'_i

and leaves the state

    S⁺ = exp(c + L − c⁺) S + Σ_j exp(s_j + L − c⁺) k_j v_jᵀ
    z⁺ = exp(c + L − c⁺) z + Σ_j exp(s_j + L − c⁺) k'_j
"""

import triton
import triton.language as tl

from linear_rope.ops.linear.triton_form.fading import (
    enter_factors,
    fading,
    gains,
    log_kept,
    pair_factors,
    query_exponents,
    read_factors,
    stabiliser_after,
)
from linear_rope.ops.linear.triton_form.maps import held_projection
from linear_rope.ops.linear.triton_form.rotation import rotated_keys, rotated_queries
from linear_rope.ops.linear.triton_form.states import (
    load_memory,
    load_normaliser,
    load_stabiliser,
    load_values,
    store_memory,
    store_normaliser,
)
from linear_rope.ops.linear.triton_form.terms import load_own, load_own_keys, map_both, map_keys, summed_keys
from linear_rope.ops.linear.triton_form.tiles import NOTHING, factor, load_tile, product, store_tile, store_vector


@triton.jit
def states_before_chunks(call, begin, states, end, end_log_kept, rows, chunks_of_piece, KEEP: tl.constexpr):
    """One piece of one row: the state before each of its chunks; or, without KEEP, what it adds to no state.

    Args:
        begin: States (pieces, rows) before each piece, or of None for no state.
        states: States (chunks + 1, rows) before each chunk and after the last.
        end: with KEEP, States (1, rows) after the last chunk; without, States (pieces, rows), where what a piece adds
            has the place of the piece after it.
        end_log_kept: likewise (pieces, rows), the logarithm of what a piece keeps of a state.
    """
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    batch, head = row // call.heads, row % call.heads
    projection, rest = held_projection(call)
    value_columns = tl.arange(0, call.BLOCK_V)
    memory = tl.zeros([call.BLOCK_M, call.BLOCK_V], tl.float32)
    normaliser = tl.zeros([call.BLOCK_M], tl.float32)
    before = tl.full([], NOTHING if call.HAS_SCALE else 0.0, tl.float32)
    place = piece * rows + row
    if begin.memory is not None:
        memory = load_memory(call, begin.memory, place, value_columns).to(tl.float32)
        if call.DENOMINATOR != "none":
            normaliser = load_normaliser(call, begin.normaliser, place)
        if call.HAS_SCALE:
            before = load_stabiliser(call, begin.stabiliser, place)
    nothing = tl.full([], 0.0, tl.float32)
    log_kept_of_all = nothing
    first = piece * chunks_of_piece
    count = tl.minimum(call.chunks - first, chunks_of_piece)
    for n in range(0, count):
        chunk = first + n
        start = chunk * call.C
        if KEEP:
            at = chunk * rows + row
            store_memory(call, states.memory, at, memory)
            if call.DENOMINATOR != "none":
                store_normaliser(call, states.normaliser, at, normaliser)
            if call.HAS_SCALE:
                tl.store(states.stabiliser + at, before)
        mapped, log_scale = map_keys(call, projection, rest, batch, head, row, start)
        keys = rotated_keys(call, mapped, batch, start)
        v = load_tile(call.v, batch, head, start, call.length, value_columns, call.C, call.V)
        summed = summed_keys(call, mapped, keys, batch, head, start)
        if call.HAS_SCALE or call.log_decay is not None:
            faded, segment = fading(call, row, start)
            query = query_exponents(call, log_scale - faded, faded, segment, before)
            after = tl.full([], 0.0, tl.float32)
            if call.HAS_SCALE:
                after = stabiliser_after(call, query, faded)
            enter = enter_factors(call, log_scale - faded, faded, segment, after)
            keys, summed = keys * enter[:, None], summed * enter[:, None]
            log_kept_here = log_kept(call, faded, segment, before, after)
            kept = tl.exp(log_kept_here)
            memory, normaliser = memory * kept, normaliser * kept
            log_kept_of_all += log_kept(call, faded, segment, nothing, nothing)
            before = after
        memory += product(tl.trans(keys), v, call.DTYPE, call.PRECISION)
        normaliser += tl.sum(summed, 0)
    if KEEP:
        if first + count == call.chunks:
            at = (first + count) * rows + row
            store_memory(call, states.memory, at, memory)
            if call.DENOMINATOR != "none":
                store_normaliser(call, states.normaliser, at, normaliser)
            if call.HAS_SCALE:
                tl.store(states.stabiliser + at, before)
            store_memory(call, end.memory, row, memory)
            if call.DENOMINATOR != "none":
                store_normaliser(call, end.normaliser, row, normaliser)
            if call.HAS_SCALE:
                tl.store(end.stabiliser + row, before.to(end.stabiliser.dtype.element_ty))
    else:
        at = (piece + 1) * rows + row
        store_memory(call, end.memory, at, memory)
        if call.DENOMINATOR != "none":
            store_normaliser(call, end.normaliser, at, normaliser)
        if call.HAS_SCALE:
            tl.store(end.stabiliser + at, before)
        if call.log_decay is not None:
            tl.store(end_log_kept + at, log_kept_of_all)


@triton.jit
def outputs(call, states, output, total_out, scale_out, query_out, rows):
    """One chunk of one row."""
    pid = tl.program_id(0).to(tl.int64)
    chunk, row = pid % call.chunks, pid // call.chunks
    batch, head, start = row // call.heads, row % call.heads, chunk * call.C
    place = chunk * rows + row
    k, key_scale, q, query_scale = map_both(call, batch, head, row, start)
    turned_k, k = factor(call, rotated_keys(call, k, batch, start)), factor(call, k)
    faded, segment = fading(call, row, start)
    key = key_scale - faded
    before = tl.full([], 0.0, tl.float32)
    if call.HAS_SCALE:
        before = load_stabiliser(call, states.stabiliser, place)
    query = query_exponents(call, key, faded, segment, before)
    pairs = pair_factors(call, key, query, segment, 0)
    read = read_factors(call, query, segment, before)
    if call.HAS_SCALE:
        store_vector(scale_out, row, start, call.length, query + faded, call.C)
        if query_out is not None:
            store_vector(query_out, row, start, call.length, query, call.C)

    total = tl.zeros([call.C], tl.float32)
    normaliser = tl.zeros([call.BLOCK_M], tl.float32)
    if call.DENOMINATOR != "none":
        normaliser = load_normaliser(call, states.normaliser, place)
    if call.DENOMINATOR == "mapped":
        total = read * tl.sum(q * normaliser[None, :], 1)
        total += tl.sum(product(q, tl.trans(k), call.DTYPE, call.PRECISION) * pairs, 1)
    if call.DENOMINATOR == "own":
        own_q = load_own(call, call.denominator_q, batch, head, start)
        own_k = load_own_keys(call, batch, head, start)
        total = read * tl.sum(own_q * normaliser[None, :], 1)
        total += tl.sum(product(own_q, tl.trans(own_k), call.DTYPE, call.PRECISION) * pairs, 1)

    q = rotated_queries(call, q, batch, start)
    if call.DENOMINATOR == "shared":
        total = read * tl.sum(q * normaliser[None, :], 1)
    q = factor(call, q)
    weights = product(q, tl.trans(turned_k), call.DTYPE, call.PRECISION) * pairs
    if call.DENOMINATOR == "shared":
        total += tl.sum(weights, 1)
    if call.DENOMINATOR != "none":
        store_vector(total_out, row, start, call.length, total, call.C)
    gain = gains(call, total, query, faded, query_scale)[:, None]
    weights = weights.to(call.DTYPE)
    for first in range(0, call.V, call.VALUES):
        columns = first + tl.arange(0, call.VALUES)
        memory = load_memory(call, states.memory, place, columns)
        numerator = product(q, memory, call.DTYPE, call.PRECISION) * read[:, None]
        v = load_values(call, call.v, batch, head, start, columns)
        # Last: the compiler lays all products out as the last one, and a square one would waste most of its warps.
        numerator += product(weights, v, call.DTYPE, call.PRECISION)
        store_tile(output, batch, head, start, call.length, columns, numerator * gain, call.C, call.V)


@triton.jit
def join_pieces(
    numbers,
    own_stabiliser,
    pieces_log_kept,
    stabiliser_out,
    rows,
    pieces,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    REVERSE: tl.constexpr,
):
    """What comes before each piece, from what comes before the first and what each piece adds, in its place.

    Piece after piece; for gradients of states from the last to the first. Of what comes before it a piece keeps
    exp(log_kept); with stabilisers, both are relative to the larger exponent.

    Args:
        numbers: (pieces, rows, SIZE) of memories or normalisers.
        own_stabiliser: (pieces, rows), or None.
        pieces_log_kept: (pieces, rows), or None for 0.
        stabiliser_out: (pieces, rows), those of the joined; or None.
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    place = (pieces - 1 if REVERSE else 0) * rows + row
    state = tl.load(numbers + place * SIZE + at, mask=inside, other=0.0)
    stabiliser = tl.full([], 0.0, tl.float32)
    if own_stabiliser is not None:
        stabiliser = tl.load(own_stabiliser + place)
        tl.store(stabiliser_out + place, stabiliser)
    for n in range(1, pieces):
        place = (pieces - 1 - n if REVERSE else n) * rows + row
        added = tl.load(numbers + place * SIZE + at, mask=inside, other=0.0)
        faded = stabiliser
        if pieces_log_kept is not None:
            faded = stabiliser + tl.load(pieces_log_kept + place)
        if own_stabiliser is not None:
            own = tl.load(own_stabiliser + place)
            stabiliser = tl.maximum(tl.maximum(faded, own), NOTHING)
            tl.store(stabiliser_out + place, stabiliser)
            state = state * tl.exp(faded - stabiliser) + added * tl.exp(own - stabiliser)
        else:
            state = state * tl.exp(faded) + added
        tl.store(numbers + place * SIZE + at, state, mask=inside)
