"""The host's side where every query sees every key: the same two functions as in launch.py."""

from typing import Any

from linear_rope.ops.linear.call import Call, Gradients, Result, Upstream, empty_gradients, put_exponents
from linear_rope.ops.linear.triton_form import bidirectional, settings
from linear_rope.ops.linear.triton_form.launch import JOIN_BLOCK, Launcher, empty_result, or_none, rows_of
from linear_rope.ops.linear.triton_form.state import States


def attend(call: Call, *, keep: bool) -> Result:
    """Forward; its result is all that :func:`differentiate` needs."""
    result = empty_result(call, keep=keep)
    if not result.output.numel():
        return result
    to = Launcher(call)
    sums = _sums_of(to, result)
    _sum_pieces(to, bidirectional.sum_keys, to.keys, (to.of_keys,), sums, number=0)
    read = sums, rows_of(result.output), or_none(result.denominator)
    to.run_chunks(bidirectional.read_sums, to.inputs, *read, number=1)
    return result


def _sums_of(to: Launcher, result: Result) -> States:
    return to.state(*(or_none(x) for x in (result.memory, result.key_sum, result.stabiliser)))


def _sum_pieces(to: Launcher, kernel: Any, length: int, read: tuple[Any, ...], sums: States, number: int) -> None:
    """What ``kernel`` sums over ``length`` positions, in pieces, into States (rows, ...)."""
    pieces, chunks_of_piece = settings.pieces_of(length, to.heads, to.settings.chunk)
    parts = sums if pieces == 1 else to.new_states(pieces, stabilised=sums.stabiliser is not None)
    to.run_rows(kernel, pieces, *read, parts, to.rows, chunks_of_piece, number=number)
    if pieces == 1:
        return
    for part, whole in ((parts.memory, sums.memory), (parts.normaliser, sums.normaliser)):
        if part is not None and whole is not None:
            size = part[0, 0].numel()
            to.run(
                bidirectional.add_pieces,
                (to.rows, -(-size // JOIN_BLOCK)),
                *(part, parts.stabiliser, whole, sums.stabiliser, to.rows, pieces),
                SIZE=size,
                BLOCK=JOIN_BLOCK,
                warps=4,
            )


def differentiate(call: Call, result: Result, of: Upstream) -> Gradients:
    """Backward: from the gradients of the result's output and denominator; those of the state are for causal calls."""
    gradients, to = empty_gradients(call), Launcher(call)
    sums = _sums_of(to, result)
    total, grad_rows, of_total, of_q, of_k = to.for_gradients(result, of)
    grad_total = to.flat("grad_total", of.denominator, call.q.shape[:3])
    to.run_chunks(
        bidirectional.reader_gradients,
        *(to.inputs, sums, rows_of(result.output), total, grad_rows, grad_total),
        *(rows_of(gradients.q), rows_of(gradients.denominator_q), of_total, of_q),
        number=2,
    )
    of_sums = States(*(None if x is None else x[0] for x in to.new_states(1, stabilised=False)))
    read = to.inputs, sums, total, grad_rows, of_total
    _sum_pieces(to, bidirectional.gradients_of_sums, to.length, read, of_sums, number=3)
    of_keys = (rows_of(x) for x in (gradients.k, gradients.v, gradients.denominator_k))
    to.run_chunks(bidirectional.summand_gradients, to.of_keys, sums, of_sums, *of_keys, of_k, number=4)
    if of_q is not None and of_k is not None:
        put_exponents(gradients, call, of_q, of_k, of_q, to.length)
    return gradients
