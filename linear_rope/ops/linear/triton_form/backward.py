"""The backward pass: gradients of queries chunk by chunk, those of states from the last to the first, then of keys.

With ō_i the gradient of numerator i, that is of the output times its gain, t̄_i that of denominator i, and (S̄, z̄) those
of the state after a chunk (the words of forward.py), a chunk has

    q̄_i  = Σ_{j ≤ i} P_ij (ō_i·v_j) k_j + exp(c − u_i) S ō_i
    q̄'_i = Σ_{j ≤ i} P_ij t̄_i k'_j      + exp(c − u_i) t̄_i z
    v̄_j  = Σ_{i ≥ j} P_ij (q_i·k_j) ō_i + exp(s_j + L − c⁺) S̄ᵀk_j
    k̄_j  = Σ_{i ≥ j} P_ij (ō_i·v_j) q_i + exp(s_j + L − c⁺) S̄ v_j
    k̄'_j = Σ_{i ≥ j} P_ij t̄_i q'_i      + exp(s_j + L − c⁺) z̄

and before it the gradients of the state are

    exp(c + L − c⁺) S̄ + Σ_i exp(c − u_i) q_i ō_iᵀ    and    exp(c + L − c⁺) z̄ + Σ_i exp(c − u_i) t̄_i q'_i

Exponents are constants, and what multiplies a whole vector has the gradient Σ vector · gradient.
"""

import triton
import triton.language as tl

from linear_rope.ops.linear.triton_form import fading, maps, rotation, state, terms, tiles


@triton.jit
def load_query_exponents(call, query_saved, row, start, faded):
    """u_i as the forward pass found them, so that both passes have the same factors."""
    if query_saved is None:
        query = -faded
    else:
        query = tiles.load_vector(query_saved, row, start, call.length, call.C, float("inf"))
    return query


@triton.jit
def saved_gains(call, total, query, faded, query_scale, row, start):
    """The gains of a chunk's numerators (C,), from the denominators that the forward pass found."""
    totals = faded
    if call.DENOMINATOR != "none":
        totals = tiles.load_vector(total, row, start, call.length, call.C, 0.0)
    return fading.gains(call, totals, query, faded, query_scale)


@triton.jit
def numerator_gradients(call, grad_output, gain, batch, head, start, columns):
    """ō (C, columns)."""
    return state.load_values(call, grad_output, batch, head, start, columns).to(tl.float32) * gain[:, None]


@triton.jit
def query_gradients(
    call, states, query_saved, output, total, grad_output, grad_total, grad_q, grad_own, of_total_out, of_q, rows
):
    """One chunk of one row: gradients of its queries, and t̄ for the other kernels."""
    chunk, row, batch, head, start = tiles.chunk_of_program(call)
    place = chunk * rows + row
    k, key_scale, q, query_scale = terms.map_both(call, batch, head, row, start)
    turned_k, k = tiles.factor(call, rotation.rotated_keys(call, k, batch, start)), tiles.factor(call, k)
    faded, segment = fading.fading(call, row, start)
    query = load_query_exponents(call, query_saved, row, start, faded)
    before = state.load_stabiliser(call, states.stabiliser, place)
    pairs = fading.pair_factors(call, key_scale - faded, query, segment, 0)
    read = fading.read_factors(call, query, segment, before)
    gain = saved_gains(call, total, query, faded, query_scale, row, start)
    of_weights = tl.zeros([call.C, call.C], tl.float32)
    of_features = tl.zeros([call.C, call.BLOCK_M], tl.float32)
    of_total = tl.zeros([call.C], tl.float32)
    for first in range(0, call.V, call.VALUES):
        columns = first + tl.arange(0, call.VALUES)
        grad = numerator_gradients(call, grad_output, gain, batch, head, start, columns)
        v = state.load_values(call, call.v, batch, head, start, columns)
        of_weights += tiles.product(grad, tl.trans(v), call.DTYPE, call.PRECISION)
        memory = state.load_memory(call, states.memory, place, columns)
        of_features += tiles.product(grad * read[:, None], tl.trans(memory), call.DTYPE, call.PRECISION)
        if call.DENOMINATOR != "none":
            of_total -= tl.sum(grad * state.load_values(call, output, batch, head, start, columns).to(tl.float32), 1)
    if call.DENOMINATOR != "none":
        if grad_total is not None:
            of_total += tiles.load_vector(grad_total, row, start, call.length, call.C, 0.0)
        tiles.store_vector(of_total_out, row, start, call.length, of_total, call.C)
        if call.DENOMINATOR == "shared":
            of_weights += of_total[:, None]
    of_features += tiles.product(of_weights * pairs, turned_k, call.DTYPE, call.PRECISION)

    of_read, normaliser = of_total * read, tl.zeros([call.BLOCK_M], tl.float32)
    if call.DENOMINATOR != "none":
        normaliser = state.load_normaliser(call, states.normaliser, place)
    of_summed = of_read[:, None] * normaliser[None, :]
    if call.DENOMINATOR == "shared":
        of_features += of_summed
    of_features = rotation.queries_rotated_back(call, of_features, batch, start)
    if call.DENOMINATOR == "mapped":
        of_summed += tiles.product(of_total[:, None] * pairs, k, call.DTYPE, call.PRECISION)
    if call.DENOMINATOR == "own":
        own_k = terms.load_own_keys(call, batch, head, start)
        of_summed += tiles.product(of_total[:, None] * pairs, own_k, call.DTYPE, call.PRECISION)
    terms.store_gradients(
        call, call.q, call.denominator_q, grad_q, grad_own, of_q, batch, head, row, start, q, of_features, of_summed
    )


@triton.jit
def states_after_chunks(
    call, states, query_saved, total, grad_output, of_total, begin, of_states, end, end_log_kept, rows,
    chunks_of_piece, KEEP: tl.constexpr,
):  # fmt: skip
    """One piece of one row, from its last chunk to its first: the gradients of the states after its chunks.

    Args:
        states: States (chunks + 1, rows) of the forward pass, of which the stabilisers are read.
        begin: gradients (pieces, rows) of the state after each piece, or of None for zero.
        of_states: gradients (chunks, rows) of the state after each chunk.
        end: with KEEP, gradients (1, rows) of the state before the first chunk, or of None; without, (pieces, rows)
            what a piece adds, in the place of the piece before it.
        end_log_kept: likewise (pieces, rows), the logarithm of what a piece keeps of a state.
    """
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    if not KEEP:
        piece += 1  # nothing comes before the first
    batch, head = row // call.heads, row % call.heads
    projection, rest = maps.held_projection(call)
    value_columns = tl.arange(0, call.BLOCK_V)
    of_memory, of_normaliser, _nothing = state.load_state(call, begin, piece * rows + row)
    log_kept_of_all = tl.full([], 0.0, tl.float32)
    first = piece * chunks_of_piece
    count = tl.minimum(call.chunks - first, chunks_of_piece)
    for n in range(0, count):
        chunk = first + (count - 1 - n)
        at, start = chunk * rows + row, chunk * call.C
        if KEEP:
            state.store_state(call, of_states, at, of_memory, of_normaliser, 0.0)
        mapped, query_scale = terms.map_queries(call, projection, rest, batch, head, row, start)
        q = rotation.rotated_queries(call, mapped, batch, start)
        faded, segment = fading.fading(call, row, start)
        query = load_query_exponents(call, query_saved, row, start, faded)
        before = state.load_stabiliser(call, states.stabiliser, at)
        after = state.load_stabiliser(call, states.stabiliser, at + rows)
        gain = saved_gains(call, total, query, faded, query_scale, row, start)
        grad = numerator_gradients(call, grad_output, gain, batch, head, start, value_columns)
        read = fading.read_factors(call, query, segment, before)
        if call.HAS_SCALE or call.log_decay is not None:
            log_kept_here = fading.log_kept(call, faded, segment, before, after)
            of_memory, of_normaliser = of_memory * tl.exp(log_kept_here), of_normaliser * tl.exp(log_kept_here)
            log_kept_of_all += log_kept_here
        of_memory += tiles.product(tl.trans(q), grad * read[:, None], call.DTYPE, call.PRECISION)
        if call.DENOMINATOR != "none":
            summed = terms.summed_queries(call, mapped, q, batch, head, start)
            of_read = tiles.load_vector(of_total, row, start, call.length, call.C, 0.0) * read
            of_normaliser += tl.sum(summed * of_read[:, None], 0)
    if KEEP:
        if first == 0:
            state.store_state(call, end, row, of_memory, of_normaliser, 0.0)
    else:
        at = (piece - 1) * rows + row
        state.store_state(call, end, at, of_memory, of_normaliser, 0.0)
        if end_log_kept is not None:
            tl.store(end_log_kept + at, log_kept_of_all)


@triton.jit
def key_gradients(
    call, states, query_saved, total, grad_output, of_total, of_states, grad_k, grad_v, grad_own, of_k,
    exponents_of_states, rows, CHUNKS_OF_STRETCH: tl.constexpr,
):  # fmt: skip
    """One chunk of one row: gradients of its keys and values, and after each stretch of the state's exponent."""
    chunk, row, batch, head, start = tiles.chunk_of_program(call)
    place = chunk * rows + row
    k, key_scale, q, query_scale = terms.map_both(call, batch, head, row, start)
    turned_q, q = tiles.factor(call, rotation.rotated_queries(call, q, batch, start)), tiles.factor(call, q)
    turned_k = tiles.factor(call, rotation.rotated_keys(call, k, batch, start))
    faded, segment = fading.fading(call, row, start)
    query = load_query_exponents(call, query_saved, row, start, faded)
    after = state.load_stabiliser(call, states.stabiliser, place + rows)
    there = tiles.is_key(call, batch, start)
    pairs = tl.where(there[:, None], fading.pair_factors(call, key_scale - faded, query, segment, 1), 0.0)
    enter = tl.full([call.C], 1.0, tl.float32)
    if call.HAS_SCALE or call.log_decay is not None:
        enter = fading.enter_factors(call, key_scale - faded, faded, segment, after)
    enter = tl.where(there, enter, 0.0)
    gain = saved_gains(call, total, query, faded, query_scale, row, start)
    weights = tiles.product(turned_k, tl.trans(turned_q), call.DTYPE, call.PRECISION) * pairs
    weights = weights.to(call.DTYPE)
    of_weights = tl.zeros([call.C, call.C], tl.float32)
    of_features = tl.zeros([call.C, call.BLOCK_M], tl.float32)
    for first in range(0, call.V, call.VALUES):
        columns = first + tl.arange(0, call.VALUES)
        grad = numerator_gradients(call, grad_output, gain, batch, head, start, columns).to(call.DTYPE)
        of_memory = state.load_memory(call, of_states.memory, place, columns)
        of_v = tiles.product(turned_k, of_memory, call.DTYPE, call.PRECISION) * enter[:, None]
        of_v += tiles.product(weights, grad, call.DTYPE, call.PRECISION)
        tiles.store_tile(grad_v, batch, head, start, call.length, columns, of_v, call.C, call.V)
        v = state.load_values(call, call.v, batch, head, start, columns)
        of_weights += tiles.product(v, tl.trans(grad), call.DTYPE, call.PRECISION)
        of_features += tiles.product(v, tl.trans(of_memory), call.DTYPE, call.PRECISION)
    of_features *= enter[:, None]
    of_totals = tl.zeros([call.C], tl.float32)
    of_normaliser = tl.zeros([call.BLOCK_M], tl.float32)
    if call.DENOMINATOR != "none":
        of_totals = tiles.load_vector(of_total, row, start, call.length, call.C, 0.0)
        of_normaliser = state.load_normaliser(call, of_states.normaliser, place)
    of_summed = enter[:, None] * of_normaliser[None, :]
    if call.DENOMINATOR == "shared":
        of_weights += of_totals[None, :]
        of_features += of_summed
    of_features += tiles.product(of_weights * pairs, turned_q, call.DTYPE, call.PRECISION)
    of_features = rotation.keys_rotated_back(call, of_features, batch, start)
    if call.DENOMINATOR == "mapped":
        of_summed += tiles.product(of_totals[None, :] * pairs, q, call.DTYPE, call.PRECISION)
    if call.DENOMINATOR == "own":
        own_q = terms.load_own(call, call.denominator_q, batch, head, start)
        of_summed += tiles.product(of_totals[None, :] * pairs, own_q, call.DTYPE, call.PRECISION)
    terms.store_gradients(
        call, call.k, call.denominator_k, grad_k, grad_own, of_k, batch, head, row, start, k, of_features, of_summed
    )
    if exponents_of_states is not None:
        if (chunk + 1) % CHUNKS_OF_STRETCH == 0 and chunk + 1 < call.chunks:
            of_exponent_of_state = tl.full([], 0.0, tl.float32)
            for first in range(0, call.V, call.VALUES):
                columns = first + tl.arange(0, call.VALUES)
                memory = state.load_memory(call, states.memory, place + rows, columns).to(tl.float32)
                of_memory = state.load_memory(call, of_states.memory, place, columns).to(tl.float32)
                of_exponent_of_state += tl.sum(tl.sum(of_memory * memory, 1), 0)
            if call.DENOMINATOR != "none":
                normaliser = state.load_normaliser(call, states.normaliser, place + rows)
                of_exponent_of_state += tl.sum(of_normaliser * normaliser, 0)
            stretches = tl.cdiv(call.chunks, CHUNKS_OF_STRETCH)
            to = exponents_of_states + row * stretches + chunk // CHUNKS_OF_STRETCH
            tl.store(to, of_exponent_of_state.to(exponents_of_states.dtype.element_ty))
