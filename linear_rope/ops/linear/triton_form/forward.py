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

from linear_rope.ops.linear.triton_form import fading, maps, rotation, state, terms, tiles
from linear_rope.ops.linear.triton_form.tiles import NOTHING


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
    projection, rest = maps.held_projection(call)
    value_columns = tl.arange(0, call.BLOCK_V)
    memory, normaliser, before = state.load_state(call, begin, piece * rows + row)
    nothing = tl.full([], 0.0, tl.float32)
    log_kept_of_all = nothing
    first = piece * chunks_of_piece
    count = tl.minimum(call.chunks - first, chunks_of_piece)
    for n in range(0, count):
        chunk = first + n
        start = chunk * call.C
        if KEEP:
            state.store_state(call, states, chunk * rows + row, memory, normaliser, before)
        mapped, log_scale = terms.map_keys(call, projection, rest, batch, head, row, start)
        keys = rotation.rotated_keys(call, mapped, batch, start)
        v = state.load_values(call, call.v, batch, head, start, value_columns)
        summed = terms.summed_keys(call, mapped, keys, batch, head, start)
        if call.HAS_SCALE or call.log_decay is not None:
            faded, segment = fading.fading(call, row, start)
            query = fading.query_exponents(call, log_scale - faded, faded, segment, before)
            after = tl.full([], 0.0, tl.float32)
            if call.HAS_SCALE:
                after = fading.stabiliser_after(call, query, faded)
            enter = fading.enter_factors(call, log_scale - faded, faded, segment, after)
            keys, summed = keys * enter[:, None], summed * enter[:, None]
            log_kept_here = fading.log_kept(call, faded, segment, before, after)
            kept = tl.exp(log_kept_here)
            memory, normaliser = memory * kept, normaliser * kept
            log_kept_of_all += fading.log_kept(call, faded, segment, nothing, nothing)
            before = after
        memory += tiles.product(tl.trans(keys), v, call.DTYPE, call.PRECISION)
        normaliser += tl.sum(summed, 0)
    if KEEP:
        if first + count == call.chunks:
            state.store_state(call, states, (first + count) * rows + row, memory, normaliser, before)
            state.store_state(call, end, row, memory, normaliser, before)
    else:
        at = (piece + 1) * rows + row
        state.store_state(call, end, at, memory, normaliser, before)
        if call.log_decay is not None:
            tl.store(end_log_kept + at, log_kept_of_all)


@triton.jit
def outputs(call, states, output, total_out, scale_out, query_out, rows):
    """One chunk of one row."""
    chunk, row, batch, head, start = tiles.chunk_of_program(call)
    place = chunk * rows + row
    k, key_scale, q, query_scale = terms.map_both(call, batch, head, row, start)
    turned_k, k = tiles.factor(call, rotation.rotated_keys(call, k, batch, start)), tiles.factor(call, k)
    faded, segment = fading.fading(call, row, start)
    key = key_scale - faded
    before = state.load_stabiliser(call, states.stabiliser, place)
    query = fading.query_exponents(call, key, faded, segment, before)
    pairs = fading.pair_factors(call, key, query, segment, 0)
    read = fading.read_factors(call, query, segment, before)
    if call.HAS_SCALE:
        tiles.store_vector(scale_out, row, start, call.length, query + faded, call.C)
        if query_out is not None:
            tiles.store_vector(query_out, row, start, call.length, query, call.C)

    total = tl.zeros([call.C], tl.float32)
    normaliser = tl.zeros([call.BLOCK_M], tl.float32)
    if call.DENOMINATOR != "none":
        normaliser = state.load_normaliser(call, states.normaliser, place)
    if call.DENOMINATOR == "mapped":
        total = read * tl.sum(q * normaliser[None, :], 1)
        total += tl.sum(tiles.product(q, tl.trans(k), call.DTYPE, call.PRECISION) * pairs, 1)
    if call.DENOMINATOR == "own":
        own_q = terms.load_own(call, call.denominator_q, batch, head, start)
        own_k = terms.load_own_keys(call, batch, head, start)
        total = read * tl.sum(own_q * normaliser[None, :], 1)
        total += tl.sum(tiles.product(own_q, tl.trans(own_k), call.DTYPE, call.PRECISION) * pairs, 1)

    q = rotation.rotated_queries(call, q, batch, start)
    if call.DENOMINATOR == "shared":
        total = read * tl.sum(q * normaliser[None, :], 1)
    q = tiles.factor(call, q)
    weights = tiles.product(q, tl.trans(turned_k), call.DTYPE, call.PRECISION) * pairs
    if call.DENOMINATOR == "shared":
        total += tl.sum(weights, 1)
    if call.DENOMINATOR != "none":
        tiles.store_vector(total_out, row, start, call.length, total, call.C)
    gain = fading.gains(call, total, query, faded, query_scale)[:, None]
    weights = weights.to(call.DTYPE)
    for first in range(0, call.V, call.VALUES):
        columns = first + tl.arange(0, call.VALUES)
        memory = state.load_memory(call, states.memory, place, columns)
        numerator = tiles.product(q, memory, call.DTYPE, call.PRECISION) * read[:, None]
        v = state.load_values(call, call.v, batch, head, start, columns)
        # Last: the compiler lays all products out as the last one, and a square one would waste most of its warps.
        numerator += tiles.product(weights, v, call.DTYPE, call.PRECISION)
        tiles.store_tile(output, batch, head, start, call.length, columns, numerator * gain, call.C, call.V)


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
