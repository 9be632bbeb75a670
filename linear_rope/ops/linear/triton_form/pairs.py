"""Both passes where pairs of features have decays of their own, beyond that of the head, which fading.py has.

A chunk is a sub-block of gated linear attention (Yang et al. 2023, arXiv 2312.06635): 16 positions, relative to its
start. With D_{ij,p} = Σ_{j<t≤i} of pair p's ln a, all at most 0 and summed directly, and P, s, u, c as in forward.py, a
chunk after the state (S, z, c) gives, feature m being one of pair p,

    numerator_i = Σ_{j ≤ i} P_ij Σ_m exp(D_{ij,p}) q_im k_jm v_j  +  exp(c − u_i) Σ_m exp(D_{i0,p}) q_im S_m

D_{i0} reaching back to the state and D_{Cj} on to the last position, and leaves

    S⁺_m = exp(c + L − c⁺ + D_{C0,p}) S_m + Σ_j exp(s_j + L − c⁺ + D_{Cj,p}) k_jm v_jᵀ

Denominators and z likewise, by decays of their own if there are any. Products of exp(D_{i0}) and exp(−D_{j0}) would
overflow: inside a chunk the weights of each key are made one after the other, feature by feature, in float32.

ln a of pair p at t is in the weights of every key before t for every query from t on, and in what the chunk keeps.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from linear_rope.ops.linear.triton_form import backward, fading, maps, rotation, state, terms, tiles
from linear_rope.ops.linear.triton_form.fading import RESET


class Decays(NamedTuple):
    """ln a beyond that of the head, or their gradients, contiguous.

    Attributes:
        pairs: (B·H, N, M / 2) of pairs.
        own: (B·H, N) of denominators of their own; None for that of the pairs.
        head: (B·H, N), of gradients that of the head.
    """

    pairs: Any
    own: Any
    head: Any = None


@triton.jit
def load_decays(call, x, row, start, FIRST: tl.constexpr, PAIRS: tl.constexpr):
    """(C, BLOCK_M) of x (B·H, N, PAIRS): of each feature, at the positions of a chunk from FIRST on, then zeros."""
    i, m = FIRST + tl.arange(0, call.C), tl.arange(0, call.BLOCK_M)
    inside = ((i < call.C) & (start + i < call.length))[:, None] & (m < call.M)[None, :]
    pair = m // (call.M // PAIRS)
    at = (row * call.length + start + i)[:, None] * PAIRS + pair[None, :]
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def fades(call, x, row, start, PAIRS: tl.constexpr):
    """ln a (C, BLOCK_M), then exp of D_{i0}, of D_{Cj}, and of D_{C0} (BLOCK_M,)."""
    logs, later = load_decays(call, x, row, start, 0, PAIRS), load_decays(call, x, row, start, 1, PAIRS)
    return logs, tl.exp(tl.cumsum(logs, 0)), tl.exp(tl.cumsum(later, 0, reverse=True)), tl.exp(tl.sum(logs, 0))


@triton.jit
def pair_fades(call, decays, row, start):
    """Of the numerator."""
    return fades(call, decays.pairs, row, start, call.M // 2)


@triton.jit
def summed_fades(call, decays, row, start):
    """Of the denominator."""
    if decays.own is None:
        logs, reading, entering, left = pair_fades(call, decays, row, start)
    else:
        logs, reading, entering, left = fades(call, decays.own, row, start, 1)
    return logs, reading, entering, left


@triton.jit
def row_of(x, j):
    """Row j of x (rows, columns)."""
    return tl.sum(tl.where((tl.arange(0, x.shape[0]) == j)[:, None], x, 0.0), 0)


@triton.jit
def one_key_further(call, between, logs, j):
    """D_{ij} (C, BLOCK_M) of key j − 1, from that of key j."""
    return between + tl.where((tl.arange(0, call.C) >= j)[:, None], row_of(logs, j)[None, :], 0.0)


@triton.jit
def faded_products(call, q, k, logs):
    """(C, C) Σ_m exp(D_ijm) q_im k_jm; later keys hold numbers that say nothing."""
    i = tl.arange(0, call.C)
    products, between = tl.zeros([call.C, call.C], tl.float32), tl.zeros([call.C, call.BLOCK_M], tl.float32)
    for n in range(0, call.C):
        j = call.C - 1 - n
        column = tl.sum(q * tl.exp(between) * row_of(k, j)[None, :], 1)
        products = tl.where((i == j)[None, :], column[:, None], products)
        between = one_key_further(call, between, logs, j)
    return products


@triton.jit
def product_gradients(call, q, k, of_products, logs):
    """The gradients of q and k, from those of :func:`faded_products`, zero at later keys."""
    i = tl.arange(0, call.C)
    of_q, of_k = tl.zeros([call.C, call.BLOCK_M], tl.float32), tl.zeros([call.C, call.BLOCK_M], tl.float32)
    between = tl.zeros([call.C, call.BLOCK_M], tl.float32)
    for n in range(0, call.C):
        j = call.C - 1 - n
        weighed = tl.exp(between) * tl.sum(tl.where((i == j)[None, :], of_products, 0.0), 1)[:, None]
        of_q += weighed * row_of(k, j)[None, :]
        of_k = tl.where((i == j)[:, None], tl.sum(weighed * q, 0)[None, :], of_k)
        between = one_key_further(call, between, logs, j)
    return of_q, of_k


@triton.jit
def pair_states(call, decays, begin, states, end, rows):
    """One row: the states (chunks + 1, rows) before each chunk and after the last, which is ``end`` (1, rows) too."""
    row = tl.program_id(0).to(tl.int64)
    batch, head = row // call.heads, row % call.heads
    projection, rest = maps.held_projection(call)
    memory, normaliser, before = state.load_state(call, begin, row)
    for chunk in range(0, call.chunks):
        start = chunk * call.C
        state.store_state(call, states, chunk * rows + row, memory, normaliser, before)
        mapped, log_scale = terms.map_keys(call, projection, rest, batch, head, row, start)
        keys = rotation.rotated_keys(call, mapped, batch, start)
        v = state.load_values(call, call.v, batch, head, start, tl.arange(0, call.BLOCK_V))
        summed = terms.summed_keys(call, mapped, keys, batch, head, start)
        faded, segment = fading.fading(call, row, start)
        query = fading.query_exponents(call, log_scale - faded, faded, segment, before)
        after = tl.full([], 0.0, tl.float32)
        if call.HAS_SCALE:
            after = fading.stabiliser_after(call, query, faded)
        enter = fading.enter_factors(call, log_scale - faded, faded, segment, after)[:, None]
        kept = tl.exp(fading.log_kept(call, faded, segment, before, after))
        _, _, entering, left = pair_fades(call, decays, row, start)
        memory *= (kept * left)[:, None]
        memory += tiles.product(tl.trans(keys * enter * entering), v, call.DTYPE, call.PRECISION)
        if call.DENOMINATOR != "none":
            _, _, entering, left = summed_fades(call, decays, row, start)
            normaliser = normaliser * (kept * left) + tl.sum(summed * enter * entering, 0)
        before = after
    state.store_state(call, states, call.chunks * rows + row, memory, normaliser, before)
    state.store_state(call, end, row, memory, normaliser, before)


@triton.jit
def pair_outputs(call, decays, states, output, total_out, scale_out, query_out, rows):
    """One chunk of one row."""
    chunk, row, batch, head, start = tiles.chunk_of_program(call)
    place = chunk * rows + row
    k, key_scale, q, query_scale = terms.map_both(call, batch, head, row, start)
    turned_q, turned_k = rotation.rotated_queries(call, q, batch, start), rotation.rotated_keys(call, k, batch, start)
    faded, segment = fading.fading(call, row, start)
    before = state.load_stabiliser(call, states.stabiliser, place)
    query = fading.query_exponents(call, key_scale - faded, faded, segment, before)
    factors = fading.pair_factors(call, key_scale - faded, query, segment, 0)
    read = fading.read_factors(call, query, segment, before)
    if call.HAS_SCALE:
        tiles.store_vector(scale_out, row, start, call.length, query + faded, call.C)
        if query_out is not None:
            tiles.store_vector(query_out, row, start, call.length, query, call.C)

    logs, reading, _, _ = pair_fades(call, decays, row, start)
    weights = faded_products(call, turned_q, turned_k, logs) * factors
    total = tl.zeros([call.C], tl.float32)
    if call.DENOMINATOR != "none":
        normaliser = state.load_normaliser(call, states.normaliser, place)[None, :]
        summed_q = terms.summed_queries(call, q, turned_q, batch, head, start)
        own_logs, own_reading, _, _ = summed_fades(call, decays, row, start)
        total = read * tl.sum(summed_q * own_reading * normaliser, 1)
        if call.DENOMINATOR == "shared":
            total += tl.sum(weights, 1)
        else:
            summed_k = terms.summed_keys(call, k, turned_k, batch, head, start)
            total += tl.sum(faded_products(call, summed_q, summed_k, own_logs) * factors, 1)
        tiles.store_vector(total_out, row, start, call.length, total, call.C)
    gain = fading.gains(call, total, query, faded, query_scale)[:, None]
    turned_q *= reading * read[:, None]
    for first in range(0, call.V, call.VALUES):
        columns = first + tl.arange(0, call.VALUES)
        memory = state.load_memory(call, states.memory, place, columns)
        numerator = tiles.product(turned_q, memory, call.DTYPE, call.PRECISION)
        v = state.load_values(call, call.v, batch, head, start, columns)
        numerator += tiles.product(weights, v, call.DTYPE, call.PRECISION)
        tiles.store_tile(output, batch, head, start, call.length, columns, numerator * gain, call.C, call.V)


@triton.jit
def total_gradients(call, grad, output, grad_total, batch, head, row, start, columns):
    """t̄ (C,) of some of the values, from ō; the whole of them begins with ``grad_total``."""
    of_total = tl.zeros([call.C], tl.float32)
    if call.DENOMINATOR != "none":
        of_total -= tl.sum(grad * state.load_values(call, output, batch, head, start, columns).to(tl.float32), 1)
        if grad_total is not None:
            if tl.min(columns) == 0:
                of_total += tiles.load_vector(grad_total, row, start, call.length, call.C, 0.0)
    return of_total


@triton.jit
def pair_state_gradients(
    call, decays, states, query_saved, output, total, grad_output, grad_total, begin, of_states, end, rows
):
    """One row, from its last chunk to its first: the gradients (chunks, rows) of the states after chunks.

    ``begin`` and ``end`` (1, rows) are those of the state after the last and before the first.
    """
    row = tl.program_id(0).to(tl.int64)
    batch, head = row // call.heads, row % call.heads
    projection, rest = maps.held_projection(call)
    columns = tl.arange(0, call.BLOCK_V)
    of_memory, of_normaliser, _nothing = state.load_state(call, begin, row)
    for n in range(0, call.chunks):
        chunk = call.chunks - 1 - n
        at, start = chunk * rows + row, chunk * call.C
        state.store_state(call, of_states, at, of_memory, of_normaliser, 0.0)
        mapped, query_scale = terms.map_queries(call, projection, rest, batch, head, row, start)
        q = rotation.rotated_queries(call, mapped, batch, start)
        faded, segment = fading.fading(call, row, start)
        query = backward.load_query_exponents(call, query_saved, row, start, faded)
        before = state.load_stabiliser(call, states.stabiliser, at)
        kept = tl.exp(
            fading.log_kept(call, faded, segment, before, state.load_stabiliser(call, states.stabiliser, at + rows))
        )
        gain = backward.saved_gains(call, total, query, faded, query_scale, row, start)
        grad = backward.numerator_gradients(call, grad_output, gain, batch, head, start, columns)
        read = fading.read_factors(call, query, segment, before)
        _, reading, _, left = pair_fades(call, decays, row, start)
        of_memory *= (kept * left)[:, None]
        of_memory += tiles.product(tl.trans(q * reading), grad * read[:, None], call.DTYPE, call.PRECISION)
        if call.DENOMINATOR != "none":
            of_total = total_gradients(call, grad, output, grad_total, batch, head, row, start, columns)
            _, reading, _, left = summed_fades(call, decays, row, start)
            summed = terms.summed_queries(call, mapped, q, batch, head, start)
            of_normaliser *= kept * left
            of_normaliser += tl.sum(summed * reading * (of_total * read)[:, None], 0)
    state.store_state(call, end, row, of_memory, of_normaliser, 0.0)


@triton.jit
def head_factors(call, key_scale, query_saved, states, batch, row, start, place, rows):
    """How weights, reading, entering and the state fade by what all pairs have in common, 0 where there is no key, and
    where that is a reset."""
    faded, segment = fading.fading(call, row, start)
    query = backward.load_query_exponents(call, query_saved, row, start, faded)
    before = state.load_stabiliser(call, states.stabiliser, place)
    after = state.load_stabiliser(call, states.stabiliser, place + rows)
    there = tiles.is_key(call, batch, start)
    factors = tl.where(there[None, :], fading.pair_factors(call, key_scale - faded, query, segment, 0), 0.0)
    enter = tl.where(there, fading.enter_factors(call, key_scale - faded, faded, segment, after), 0.0)[:, None]
    kept = tl.exp(fading.log_kept(call, faded, segment, before, after))
    is_reset = tiles.load_vector(call.log_decay, row, start, call.length, call.C, 0.0) <= RESET
    return query, faded, factors, fading.read_factors(call, query, segment, before)[:, None], enter, kept, is_reset


@triton.jit
def decayed_gradients(call, q, k, of_products, of_read, of_entered, of_left, logs, reading, entering, left, is_reset):
    """The gradients of q and k and of ln a, (C, BLOCK_M) each, of the sums above or below the fraction.

    Args:
        of_products: (C, C) of Σ_m exp(D_ijm) q_im k_jm.
        of_read, of_entered, of_left: of what is multiplied by ``reading``, ``entering`` and ``left``.
        is_reset: (C,) where the head forgets all.
    """
    of_q, of_k = product_gradients(call, q, k, of_products, logs)
    of_q += of_read * reading
    of_entered = of_entered * entering
    from_here = tl.cumsum(q * of_q - k * of_k, 0, reverse=True)
    until_here = tl.cumsum(k * of_entered, 0) - k * of_entered
    of_logs = from_here + until_here + (of_left * left)[None, :]
    return of_q, of_k + of_entered, tl.where((logs <= RESET) | is_reset[:, None], 0.0, of_logs)


@triton.jit
def summed_gradients(
    call, decays, q, k, of_total, factors, normaliser, of_normaliser, read, enter, kept, is_reset, row, start
):
    """The same of a denominator that does not share the weights, with its gradient (C, 1)."""
    logs, reading, entering, left = summed_fades(call, decays, row, start)
    of_read, of_left = of_total * normaliser[None, :], normaliser * of_normaliser
    rest = reading * read, entering * enter, left * kept, is_reset
    return decayed_gradients(call, q, k, of_total * factors, of_read, of_normaliser[None, :], of_left, logs, *rest)


@triton.jit
def store_pairs(call, to, row, start, of_logs):
    """The sum of both features of each pair."""
    i, pair = tl.arange(0, call.C), tl.arange(0, call.BLOCK_M // 2)
    of_pairs = tl.sum(tl.reshape(of_logs, (call.C, call.BLOCK_M // 2, 2)), 2)
    at = (row * call.length + start + i)[:, None] * (call.M // 2) + pair[None, :]
    tl.store(to + at, of_pairs, mask=(start + i < call.length)[:, None] & (pair < call.M // 2)[None, :])


@triton.jit
def value_gradients(
    call, weights, entered, gain, states, output, grad_output, grad_total, of_states, grad_v, batch, head, row, start,
    place,
):  # fmt: skip
    """Stores the gradients of a chunk's values, and returns those of its weights, of denominators, of what is read of
    the state before and enters that after it, (C, BLOCK_M), and of what is left of it, (BLOCK_M,)."""
    of_weights, of_total = tl.zeros([call.C, call.C], tl.float32), tl.zeros([call.C], tl.float32)
    of_read, of_entered = tl.zeros([call.C, call.BLOCK_M], tl.float32), tl.zeros([call.C, call.BLOCK_M], tl.float32)
    of_left = tl.zeros([call.BLOCK_M], tl.float32)
    for first in range(0, call.V, call.VALUES):
        columns = first + tl.arange(0, call.VALUES)
        grad = backward.numerator_gradients(call, grad_output, gain, batch, head, start, columns)
        of_total += total_gradients(call, grad, output, grad_total, batch, head, row, start, columns)
        v = state.load_values(call, call.v, batch, head, start, columns)
        memory = state.load_memory(call, states.memory, place, columns)
        of_memory = state.load_memory(call, of_states.memory, place, columns)
        of_weights += tiles.product(grad, tl.trans(v), call.DTYPE, call.PRECISION)
        of_read += tiles.product(grad, tl.trans(memory), call.DTYPE, call.PRECISION)
        of_entered += tiles.product(v, tl.trans(of_memory), call.DTYPE, call.PRECISION)
        of_left += tl.sum(memory.to(tl.float32) * of_memory.to(tl.float32), 1)
        of_v = tiles.product(entered, of_memory, call.DTYPE, call.PRECISION)
        of_v += tiles.product(tl.trans(weights), grad, call.DTYPE, call.PRECISION)
        tiles.store_tile(grad_v, batch, head, start, call.length, columns, of_v, call.C, call.V)
    return of_weights, of_total, of_read, of_entered, of_left


@triton.jit
def pair_gradients(
    call, decays, states, query_saved, output, total, grad_output, grad_total, of_states, grad_q, grad_k, grad_v,
    grad_own_q, grad_own_k, of_q, of_k, to, rows,
):  # fmt: skip
    """One chunk of one row: gradients of queries, keys, values and, into Decays ``to``, of the decays."""
    chunk, row, batch, head, start = tiles.chunk_of_program(call)
    place = chunk * rows + row
    k, key_scale, q, query_scale = terms.map_both(call, batch, head, row, start)
    turned_q, turned_k = rotation.rotated_queries(call, q, batch, start), rotation.rotated_keys(call, k, batch, start)
    query, faded, factors, read, enter, kept, is_reset = head_factors(
        call, key_scale, query_saved, states, batch, row, start, place, rows
    )
    gain = backward.saved_gains(call, total, query, faded, query_scale, row, start)
    logs, _, entering, _ = pair_fades(call, decays, row, start)
    weights = tiles.factor(call, faded_products(call, turned_q, turned_k, logs) * factors)
    of_weights, of_total, of_read, of_entered, of_left = value_gradients(
        call, weights, tiles.factor(call, turned_k * entering * enter), gain, states, output, grad_output, grad_total,
        of_states, grad_v, batch, head, row, start, place,
    )  # fmt: skip
    normaliser, of_normaliser = tl.zeros([call.BLOCK_M], tl.float32), tl.zeros([call.BLOCK_M], tl.float32)
    if call.DENOMINATOR != "none":
        normaliser = state.load_normaliser(call, states.normaliser, place)
        of_normaliser = state.load_normaliser(call, of_states.normaliser, place)
    if call.DENOMINATOR == "shared":
        of_weights += of_total[:, None]
        of_read += of_total[:, None] * normaliser[None, :]
        of_entered += of_normaliser[None, :]
        of_left += normaliser * of_normaliser
    logs, reading, entering, left = pair_fades(call, decays, row, start)  # again: registers did not hold them
    rest = reading * read, entering * enter, left * kept, is_reset
    of_turned_q, of_turned_k, of_logs = decayed_gradients(
        call, turned_q, turned_k, of_weights * factors, of_read, of_entered, of_left, logs, *rest
    )
    of_head = tl.sum(of_logs, 1)

    of_summed_q, of_summed_k = of_turned_q, of_turned_k
    if call.DENOMINATOR == "mapped" or call.DENOMINATOR == "own":
        summed_q = terms.summed_queries(call, q, turned_q, batch, head, start)
        summed_k = terms.summed_keys(call, k, turned_k, batch, head, start)
        of_summed_q, of_summed_k, of_own_logs = summed_gradients(
            call, decays, summed_q, summed_k, of_total[:, None], factors, normaliser, of_normaliser, read, enter, kept,
            is_reset, row, start,
        )  # fmt: skip
        of_head += tl.sum(of_own_logs, 1)
        if decays.own is None:
            of_logs += of_own_logs
        else:
            tiles.store_vector(to.own, row, start, call.length, tl.sum(of_own_logs, 1), call.C)
    tiles.store_vector(to.head, row, start, call.length, of_head, call.C)
    store_pairs(call, to.pairs, row, start, of_logs)
    of_turned_q = rotation.queries_rotated_back(call, of_turned_q, batch, start)
    of_turned_k = rotation.keys_rotated_back(call, of_turned_k, batch, start)
    terms.store_gradients(
        call, call.q, call.denominator_q, grad_q, grad_own_q, of_q, batch, head, row, start, q, of_turned_q, of_summed_q
    )
    terms.store_gradients(
        call, call.k, call.denominator_k, grad_k, grad_own_k, of_k, batch, head, row, start, k, of_turned_k, of_summed_k
    )
