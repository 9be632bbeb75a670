"""One position after a state, as in decoding: the state is read once and written once.

With the state (S, z, c) before it, ln a its decay and g the logarithm of its key's scale, in the words of forward.py,

    c⁺ = max(c + ln a, g)
    S⁺ = exp(c + ln a − c⁺) S + exp(g − c⁺) k vᵀ        numerator   = S⁺ᵀq
    z⁺ = exp(c + ln a − c⁺) z + exp(g − c⁺) k'          denominator = z⁺·q'

A program takes one row and a block of its values. A chunk has one position, C = 1, and all is float32.
"""

import triton
import triton.language as tl

from linear_rope.ops.linear.triton_form import fading, rotation, state, terms, tiles
from linear_rope.ops.linear.triton_form.fading import RESET
from linear_rope.ops.linear.triton_form.tiles import NOTHING


@triton.jit
def one_position(call, before, after, output, total_out, scale_out):
    """One row and block of values: from States (1, rows) before it, or of None, to those after it."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head = row // call.heads, row % call.heads
    k, key_scale, q, query_scale = terms.map_both(call, batch, head, row, 0)
    turned_k, turned_q = rotation.rotated_keys(call, k, batch, 0), rotation.rotated_queries(call, q, batch, 0)
    stabiliser, enter, kept = step_factors(call, before, tl.sum(key_scale, 0), row)

    total = tl.zeros([1], tl.float32)
    if call.DENOMINATOR != "none":
        summed_q = terms.summed_queries(call, q, turned_q, batch, head, 0)
        normaliser = tl.sum(terms.summed_keys(call, k, turned_k, batch, head, 0), 0) * enter
        if before.normaliser is not None:
            normaliser += state.load_normaliser(call, before.normaliser, row) * kept
        total += tl.sum(normaliser * tl.sum(summed_q, 0), 0)
        if block == 0:
            state.store_normaliser(call, after.normaliser, row, normaliser)
            tl.store(total_out + row, tl.sum(total, 0))
    if call.HAS_SCALE:
        if block == 0:
            tl.store(after.stabiliser + row, stabiliser.to(after.stabiliser.dtype.element_ty))
            tl.store(scale_out + row, stabiliser.to(scale_out.dtype.element_ty))

    columns = block * call.BLOCK_V + tl.arange(0, call.BLOCK_V)
    v = tiles.load_tile(call.v, batch, head, 0, 1, columns, 1, call.V).to(tl.float32)
    m = tl.arange(0, call.BLOCK_M)
    at = row * (call.M * call.V) + m[:, None] * call.V + columns[None, :]
    inside = (m < call.M)[:, None] & (columns < call.V)[None, :]
    memory = tl.trans(turned_k) * (v * enter)
    if before.memory is not None:
        memory += tl.load(before.memory + at, mask=inside, other=0.0).to(tl.float32) * kept
    tl.store(after.memory + at, memory, mask=inside)
    numerator = tl.sum(tl.trans(turned_q) * memory, 0)[None, :]
    numerator *= fading.gains(call, total, stabiliser, 0.0, query_scale)[:, None]
    tiles.store_tile(output, batch, head, 0, 1, columns, numerator, 1, call.V)


@triton.jit
def step_factors(call, before, key_scale, row):
    """c⁺, what the key enters with, and what is kept of the state before it."""
    log_kept, is_reset = tl.full([], 0.0, tl.float32), tl.full([], 0.0, tl.float32) > 0
    if call.log_decay is not None:
        log_decay = tl.load(call.log_decay + row).to(tl.float32)
        is_reset = log_decay <= RESET
        log_kept = tl.where(is_reset, 0.0, log_decay)
    enter, stabiliser = tl.full([], 1.0, tl.float32), tl.full([], 0.0, tl.float32)
    if call.HAS_SCALE:
        c = tl.full([], NOTHING, tl.float32)
        if before.stabiliser is not None:
            c = state.load_stabiliser(call, before.stabiliser, row)
        stabiliser = tl.maximum(tl.where(is_reset, NOTHING, c + log_kept), key_scale)
        enter = tl.exp(key_scale - stabiliser)
        # In float64, because what rounding takes here is multiplied step by step.
        log_kept = (c.to(tl.float64) + log_kept.to(tl.float64) - stabiliser.to(tl.float64)).to(tl.float32)
    return stabiliser, enter, tl.where(is_reset, 0.0, tl.exp(log_kept))
