"""The delta rule in chunks against its definition, token by token."""

import pytest
import torch
import torch.nn.functional as F

from linear_rope.ops.delta.chunked import delta_rule
from linear_rope.ops.delta.definition import delta_reference
from tests.linear_rope.tensors import assert_near, random


def inputs(length, decay):
    q, k, v = (random(2, 3, length, width, seed=seed) for seed, width in enumerate((4, 4, 5)))
    channels = (4,) if "channels" in decay else ()
    beta, log_decay = random(2, 3, length, seed=3).sigmoid(), F.logsigmoid(random(2, 3, length, *channels, seed=4))
    at = torch.arange(length)
    if "resets" in decay:
        log_decay = log_decay.masked_fill((at % 29 == 11).view(-1, *[1] * len(channels)), -torch.inf)
    if decay == "channels, resets":  # and of one channel by itself
        log_decay = log_decay.masked_fill((at % 13 == 5)[:, None] & (torch.arange(4) == 2), -torch.inf)
    if "strong" in decay:
        log_decay = log_decay * 100
    state = random(2, 3, 4, 5, seed=5)
    found = [q, F.normalize(k, dim=-1), v, beta, None if decay == "none" else log_decay, state]
    return [x if x is None else x.detach().requires_grad_() for x in found]


KINDS = ("gate", "strong", "resets")


@pytest.mark.parametrize("decay", ["none", *KINDS, *(f"channels, {kind}" for kind in KINDS)])
@pytest.mark.parametrize("length", [1, 17, 64, 130])
def test_chunks_equal_the_definition(length, decay):
    found = []
    for rule in (delta_rule, delta_reference):
        given = inputs(length, decay)
        output, state = rule(*given)
        wanted = [x for x in given if x is not None]
        gradients = torch.autograd.grad(
            [output, state], wanted, [random(*output.shape, seed=8), random(*state.shape, seed=9)]
        )
        if "resets" in decay:  # of ln 0 there is no derivative; ours is 0
            gradients = [g.masked_fill(x.isneginf(), 0) for g, x in zip(gradients, wanted, strict=True)]
        found.append([output, state, *gradients])
    assert_near(*found)


@pytest.mark.parametrize("decay", ["gate", "channels, gate", "channels, strong"])
def test_float32_is_as_precise_after_many_tokens(decay):
    found = []
    for dtype in (torch.float32, torch.float64):
        q, k, v, beta, log_decay, state = (x.detach().to(dtype) for x in inputs(1000, decay))
        found.append(delta_rule(q, k, v, beta, log_decay, state))
    assert_near(*([x.double() for x in each] for each in found), 1e-5)
