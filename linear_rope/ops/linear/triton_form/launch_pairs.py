"""The host's side where pairs of features have decays of their own: the same two functions as in launch.py.

A program goes through a whole row, so few rows leave a GPU idle; and two states are kept for every 16 positions.
"""

import triton.language as tl

from linear_rope.ops.decay import of_features
from linear_rope.ops.linear.call import Call, Gradients, Result, Upstream, empty_gradients
from linear_rope.ops.linear.triton_form import launch, launch_one_position, pairs
from linear_rope.ops.linear.triton_form.launch import Launcher, or_none, rows_of, saved
from linear_rope.ops.linear.triton_form.pairs import Decays
from linear_rope.ops.linear.triton_form.state import States

CHUNK = 16
"""positions of a chunk: the shortest of a matrix product, as inside it each key is weighed by itself"""
VALUES = 32
"""of a head's width that are taken at a time: more of 128 features spill, as test_triton.py tests"""


class _Launcher(Launcher):
    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.settings = self.settings._replace(chunk=CHUNK)
        self.chunks = self.chunks_of(self.length)
        self.inputs = self.inputs._replace(chunks=self.chunks, C=tl.constexpr(CHUNK), VALUES=self._values(VALUES))
        if call.denominator_decay is not None and self.inputs.DENOMINATOR.value == "shared":
            self.inputs = self.inputs._replace(DENOMINATOR=tl.constexpr("mapped"))  # its weights fade otherwise
        queries = call.q.shape[:3]
        self.decays = Decays(
            self.flat("pair_decay", call.pair_decay, (*queries, self.features // 2)),
            self.flat("denominator_decay", call.denominator_decay, queries),
        )


def empty_result(call: Call, *, keep: bool) -> Result:
    """As in launch.py."""
    return launch.empty_result(call, keep=keep, chunk=CHUNK)


def attend(call: Call, *, keep: bool) -> Result:
    """Forward; ``keep`` what :func:`differentiate` needs."""
    if call.q.shape[2] == 1 and not keep:
        return _one_position(call)
    result = empty_result(call, keep=keep)
    if not result.output.numel():
        return result
    to = _Launcher(call)
    states = saved(result, call) if keep else to.new_states(to.chunks + 1, to.products)
    begin = to.state(call.memory, call.key_sum, call.stabiliser)
    end = States(*(or_none(x) for x in (result.memory, result.key_sum, result.stabiliser)))
    to.run_rows(pairs.pair_states, 1, to.inputs, to.decays, begin, states, end, to.rows, number=0)
    of_queries = (or_none(x) for x in (result.denominator, result.scale, result.weights))
    arguments = to.inputs, to.decays, states, rows_of(result.output), *of_queries, to.rows
    to.run_chunks(pairs.pair_outputs, *arguments, number=1)
    return result


def _one_position(call: Call) -> Result:
    """After a state that has faded before the kernel reads it."""
    assert call.pair_decay is not None
    assert call.own_decay is not None
    memory, key_sum = call.memory, call.key_sum
    if memory is not None:
        memory = memory * of_features(call.pair_decay[:, :, 0], call.features).unsqueeze(-1)
    if key_sum is not None:
        key_sum = key_sum * of_features(call.own_decay[:, :, 0], call.features)
    call = call._replace(memory=memory, key_sum=key_sum, pair_decay=None, denominator_decay=None)
    return launch_one_position.attend(call)


def differentiate(call: Call, result: Result, of: Upstream) -> Gradients:
    """Backward."""
    gradients, to = empty_gradients(call), _Launcher(call)
    states, saved_query = saved(result, call), or_none(result.weights)
    total, grad_rows, _, of_q, of_k = to.for_gradients(result, of)
    of_q, of_k = (x if wanted is not None else None for x, wanted in ((of_q, call.query_scale), (of_k, call.key_scale)))
    queries = call.q.shape[:3]
    grad_total = to.flat("grad_total", of.denominator, queries)
    read = to.inputs, to.decays, states, saved_query, rows_of(result.output), total, grad_rows, grad_total
    of_states = to.new_states(to.chunks, to.products, stabilised=False)
    end = States(gradients.memory, gradients.key_sum if call.has_denominator else None, None)
    begin = to.state(of.memory, of.key_sum, None)
    to.run_rows(pairs.pair_state_gradients, 1, *read, begin, of_states, end, to.rows, number=3)
    of_decays = Decays(
        call.new(*queries, call.features // 2),
        None if call.denominator_decay is None else call.new(*queries),
        call.new(*queries),
    )
    of_inputs = (rows_of(x) for x in gradients[:5])
    to.run_chunks(pairs.pair_gradients, *read, of_states, *of_inputs, of_q, of_k, of_decays, to.rows, number=4)
    exponents = (gradients.query_scale, of_q), (gradients.key_scale, of_k), (gradients.log_decay, of_decays.head)
    for to_put, x in exponents:
        if to_put is not None and x is not None:
            to_put.copy_(x)
    return gradients._replace(pair_decay=of_decays.pairs, denominator_decay=of_decays.own)
