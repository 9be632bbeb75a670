"""Next to nothing is left of what a query sees, or nothing: in float32, against the definition in float64.

Denominators that are small must not be squared on their way back, and what a query sees must be weighed by what is left
of the nearest. ln a = −1e4 and below is a reset, whatever holds it.
"""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope import (
    EluPlusOne,
    FavorPlus,
    FeatureMap,
    LinearRoPEAttention,
    ReluFeatures,
    apply_rope,
    linear_attention,
)
from linear_rope.positions.tokens import token_positions
from tests.linear_rope.tensors import FORMS, HEADS, TOLERANCES, D, M, assert_near, random, random_qkv

MAPS = {
    "elu+1": EluPlusOne(),
    # With a smaller ε the comparison would measure how queries cancel that are negative throughout.
    "relu": ReluFeatures(eps=1e-2),
    "favor+": FavorPlus(D, M).double(),
}
STRONG = [0.0, -50.0, -100.0, -1000.0, -1e4, -1e20, torch.finfo(torch.float32).min, -math.inf]
# The same numbers are summed in another order, and scores of keys with strong decays differ by much more than one.
TOLERANCE = 10 * TOLERANCES[torch.float32]
CAUSAL = pytest.mark.parametrize("causal", [True, False])
FORM = pytest.mark.parametrize("form", FORMS)


def defined(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, *, feature_map: FeatureMap, causal: bool, padding: Tensor
) -> Tensor:
    """Eq. 19, every pair's decays summed by themselves, relative to the largest that the query sees."""
    length = q.shape[2]
    positions = token_positions(length, padding, q.device)
    (plain_q, _), (plain_k, scale) = feature_map.queries(q), feature_map.keys(k)
    plain_k = plain_k.masked_fill(padding[:, None, :, None], 0)
    log_decay = log_decay.masked_fill(log_decay <= -1e4, -torch.inf).masked_fill(padding[:, None], 0)
    rows, row = [], log_decay[..., :0]
    for t in range(length):
        row = F.pad(row + log_decay[..., t : t + 1], (0, 1))
        rows.append(F.pad(row, (0, length - t - 1)))
    past = torch.stack(rows, dim=-2)
    exponent = past + past.mT
    if scale is not None:
        exponent = exponent + scale.mT
    hidden = padding[:, None, None].expand_as(exponent)
    if causal:
        hidden = hidden | torch.ones(length, length, dtype=torch.bool).triu(1)
    exponent = exponent.masked_fill(hidden, -torch.inf)
    kept = (exponent - exponent.detach().amax(-1, keepdim=True).clamp(min=-1e300)).exp()
    above = (apply_rope(plain_q, positions) @ apply_rope(plain_k, positions).mT * kept) @ v
    below = (plain_q @ plain_k.mT * kept).sum(-1, keepdim=True)
    return above / below.masked_fill(below == 0, torch.inf)


def outputs_and_gradients(inputs: list[Tensor], function: Any, **options: Any) -> list[list[Tensor]]:
    """Of each sequence the output, the gradients of q, k and v as one vector, and those of the decays."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*leaves, **options)
    *found, of_decay = torch.autograd.grad(output, leaves, random(*output.shape, seed=99).to(output))
    together = torch.cat([x.flatten(1) for x in found], dim=1)
    return [[x.detach().double() for x in each] for each in zip(output, together, of_decay, strict=True)]


def attended(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, *, padding: Tensor, **options: Any) -> Tensor:
    return linear_attention(q, k, v, log_decay=log_decay, key_padding_mask=padding, **options)


def check(inputs: list[Tensor], padding: Tensor, name: str, form: str, causal: bool) -> None:
    options: dict[str, Any] = dict(feature_map=MAPS[name], causal=causal, padding=padding)
    every = outputs_and_gradients([x.double() for x in inputs], defined, **options)
    found = outputs_and_gradients([x.float() for x in inputs], attended, implementation=form, **options)
    for one, expected in zip(found, every, strict=True):
        assert_near(one[:2], expected[:2], TOLERANCE)
        # Decays that nothing depends on have gradients of rounding errors; all gradients are their measure.
        largest = max(float(x.abs().max()) for x in expected[1:])
        torch.testing.assert_close(one[2], expected[2], rtol=0, atol=TOLERANCE * largest)


@CAUSAL
@pytest.mark.parametrize("name", MAPS)
@FORM
def test_one_strong_decay_among_weak_ones(form: str, name: str, causal: bool) -> None:
    """Of a sequence each at the first token, which hides all from padding on the left, in the middle and at the end."""
    length, start, sides = 70, 20, 3
    log_decay = -random(1, HEADS, length, seed=70).abs().repeat(sides * len(STRONG), 1, 1) * 0.1
    log_decay[..., [start, 40, 49, length - 1]] = torch.tensor(STRONG).double().repeat(sides)[:, None, None]
    padding = torch.zeros(sides, len(STRONG), length, dtype=torch.bool)
    padding[0, :, :start] = padding[1, :, -start:] = True
    qkv = [x.repeat(len(log_decay), 1, 1, 1) for x in random_qkv(1, HEADS, length)]
    check([*qkv, log_decay], padding.flatten(0, 1), name, form, causal)


@CAUSAL
@pytest.mark.parametrize("name", MAPS)
@FORM
def test_strong_decays_throughout(form: str, name: str, causal: bool) -> None:
    """Padding sees what is many of them away."""
    length = 40
    log_decay = torch.tensor(STRONG).double()[:, None, None].expand(-1, HEADS, length)
    padding = torch.zeros(len(STRONG), length, dtype=torch.bool)
    padding[:, :5] = padding[:, 17:20] = True
    qkv = [x.repeat(len(STRONG), 1, 1, 1) for x in random_qkv(1, HEADS, length)]
    check([*qkv, log_decay], padding, name, form, causal)


@CAUSAL
@FORM
def test_small_features_have_gradients(form: str, causal: bool) -> None:
    """Denominators of e^−50, whose squares are no float32 numbers."""
    qkv = random_qkv(2, HEADS, 30)
    for x in qkv[:2]:
        x -= 26 + x.amax()
    log_decay = torch.tensor([-0.1, 0]).double()[:, None, None].expand(-1, HEADS, 30)
    check([*qkv, log_decay], torch.zeros(2, 30, dtype=torch.bool), "elu+1", form, causal)


@CAUSAL
@pytest.mark.parametrize("decay", ["gate", "none"])
def test_an_attention_of_small_features_learns(decay: str, causal: bool) -> None:
    torch.manual_seed(0)
    low = LinearRoPEAttention(16, 2, feature_map="elu+1", causal=causal, bias=True, decay=decay)
    with torch.no_grad():
        low.query.bias.fill_(-28)
        low.key.bias.fill_(-28)
    padding = torch.zeros(2, 40, dtype=torch.bool)
    padding[0, :9] = padding[1, -9:] = True
    x, found = random(2, 40, 16), []
    for dtype in (torch.float32, torch.float64):
        module = low.to(dtype)
        y = module(x.to(dtype), key_padding_mask=padding)
        gradients = torch.autograd.grad(y, [*module.parameters()], random(*y.shape, seed=9).to(dtype))
        found.append([each.detach().double() for each in (y, *gradients)])
    assert_near(*found, TOLERANCE)
