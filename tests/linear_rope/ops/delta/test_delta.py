"""The delta rule in chunks against its definition, token by token."""

import pytest
import torch
import torch.nn.functional as F

from linear_rope.ops.delta.chunked import delta_rule
from linear_rope.ops.delta.definition import delta_reference
from tests.linear_rope.tensors import assert_near, random

LENGTHS = (1, 17, 64, 130, 257)


def inputs(length, decay):
    q, k, v = (random(2, 3, length, width, seed=seed) for seed, width in enumerate((4, 4, 5)))
    beta, log_decay = random(2, 3, length, seed=3).sigmoid(), F.logsigmoid(random(2, 3, length, seed=4))
    if decay == "resets":
        log_decay = log_decay.masked_fill(torch.arange(length) % 29 == 11, -torch.inf)
    if decay == "strong":
        log_decay = log_decay * 100
    state = random(2, 3, 4, 5, seed=5)
    found = [q, F.normalize(k, dim=-1), v, beta, None if decay == "none" else log_decay, state]
    return [x if x is None else x.detach().requires_grad_() for x in found]


@pytest.mark.parametrize("decay", ["none", "gate", "strong", "resets"])
@pytest.mark.parametrize("length", LENGTHS)
def test_chunks_equal_the_definition(length, decay):
    found = []
    for rule in (delta_rule, delta_reference):
        given = inputs(length, decay)
        output, state = rule(*given)
        wanted = [x for x in given if x is not None]
        gradients = torch.autograd.grad(
            [output, state], wanted, [random(*output.shape, seed=8), random(*state.shape, seed=9)]
        )
        if decay == "resets":  # of ln 0 there is no derivative; ours is 0
            gradients = [g.masked_fill(x.isneginf(), 0) for g, x in zip(gradients, wanted, strict=True)]
        found.append([output, state, *gradients])
    assert_near(*found)


def test_two_parts_are_one_sequence():
    q, k, v, beta, log_decay, _ = inputs(130, "gate")
    whole, end = delta_rule(q, k, v, beta, log_decay)
    first, state = delta_rule(q[:, :, :50], k[:, :, :50], v[:, :, :50], beta[:, :, :50], log_decay[:, :, :50])
    rest, last = delta_rule(q[:, :, 50:], k[:, :, 50:], v[:, :, 50:], beta[:, :, 50:], log_decay[:, :, 50:], state)
    assert_near([torch.cat((first, rest), dim=2), last], [whole, end])
