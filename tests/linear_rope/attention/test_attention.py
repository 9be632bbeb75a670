"""The attention modules with softmax, FAVOR+ and elu+1: what they compute, also of a context, and their dropout."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import FavorPlus, LinearRoPEAttention, apply_rope, linear_attention
from tests.linear_rope.attention.modules import CAUSAL_ONLY, DIM, MODULES, made, make
from tests.linear_rope.tensors import HEADS, D, assert_identical, assert_near, in_steps, random

ALONG = {"decay", "rope_angles", "local_conv", "short_conv", "score_positions"}
IN_CONTEXT = [
    name
    for name, (kernel, options) in MODULES.items()
    if kernel in ("softmax", "favor+", "elu+1", "hedgehog", "taylor")
    and not ALONG & options.keys()
    and name not in CAUSAL_ONLY
]
"""those that attend to another sequence too"""


def heads_of(projection: nn.Linear, x: Tensor) -> Tensor:
    """(B, N, dim) → (B, H, N, D)."""
    return projection(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2)


@pytest.mark.parametrize("name", [name for name in IN_CONTEXT if name.startswith("softmax") and "normed" not in name])
@pytest.mark.parametrize("causal", [True, False])
def test_softmax_attention_is_its_formula(causal: bool, name: str) -> None:
    module, x, counted = make(name, causal=causal, rope_base=100.0, bias=True), random(2, 9, DIM), torch.arange(9)
    for positions in (None, 2 * counted, torch.stack((counted, 3 * counted + 50))):
        at = (counted if positions is None else positions).expand(2, -1)
        q, k, v = (heads_of(projection, x) for projection in (module.query, module.key, module.value))
        if module.rope == "before":
            q, k = (apply_rope(y, at, base=100.0, scaling=module.rope_scaling) for y in (q, k))
        scores = q @ k.mT / math.sqrt(D)
        if module.rope_scaling:
            scores = scores * (0.1 * math.log(4) + 1) ** 2  # YaRN's temperature, for a factor of 4
        if module.alibi:
            distance = (at[:, None, :, None] - at[:, None, None, :]).abs()
            scores = scores - torch.tensor([2**-4, 2**-8])[:, None, None] * distance
        if causal:
            scores = scores.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -torch.inf)
        expected = module.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        assert_near(module(x, positions=positions), expected)
        assert_near(module.attention_weights(x, positions=positions), scores.softmax(-1))


@pytest.mark.parametrize("causal", [True, False])
def test_linear_attention_module_is_the_function_between_projections(causal: bool) -> None:
    options: dict[str, Any] = {"rope": "before", "denominator": "none", "causal": causal, "rope_base": 50.0}
    module = LinearRoPEAttention(DIM, HEADS, head_dim=6, num_features=10, seed=5, bias=True, **options).double()
    x = random(2, 70, DIM)
    q, k, v = (heads_of(projection, x) for projection in (module.query, module.key, module.value))
    y = linear_attention(q, k, v, feature_map=FavorPlus(6, 10, seed=5), implementation="reference", **options)
    assert_near(module(x), module.out(y.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("name", IN_CONTEXT)
def test_cross_attention_reads_the_context(name: str) -> None:
    module, x, context = make(name, causal=False), random(2, 5, DIM), random(2, 9, DIM, seed=1)
    y = module(x, context)
    assert y.shape == x.shape
    for changed in (2 * context, context[:, :8]):
        assert (module(x, changed) - y).abs().max() > 1e-3
    padded, mask = torch.cat((context, 5 * x), dim=1), torch.arange(14).expand(2, -1) >= 9
    assert_near(module(x, padded, key_padding_mask=mask), y)
    # A query sees the context only, not the other queries.
    assert_near(module(x[:, 2:], context, positions=(torch.arange(2, 5), torch.arange(9))), y[:, 2:])


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("feature_map", ["favor+", "elu+1"])
def test_steps_follow_a_long_prompt(feature_map: str, grad: bool) -> None:
    """Longer, and with more features, than what an implementation works on at a time."""
    features = 512 if feature_map == "favor+" else None
    module = made("favor+", feature_map=feature_map, num_features=features)
    x, mask = random(2, 1103, DIM), torch.arange(1103) % torch.tensor([[2000], [3]]) == 1
    mask[:, 1100:] = False
    with torch.set_grad_enabled(grad):
        assert_near(in_steps(module, x, 1100, mask[:, :1100]), module(x, key_padding_mask=mask))


def test_dropout_of_a_model_in_evaluation_can_be_switched_on() -> None:
    """As for Monte Carlo dropout."""
    attention, x = LinearRoPEAttention(8, 2, dropout=0.5).eval(), random(1, 5, 8).float()
    assert torch.equal(attention(x), attention(x))
    attention.dropout.train()
    assert not torch.equal(attention(x), attention(x))


def test_dropout_acts_in_training_only() -> None:
    module, x = made("favor+", dropout=0.5), random(1, 5, DIM)
    assert (module(x) == 0).any()
    module.eval()
    assert not (module(x) == 0).any()
    assert_identical(module(x), module(x))


@pytest.mark.parametrize("kernel", ["favor+", "softmax"])
def test_the_padding_of_a_context_hides_no_query(kernel: str) -> None:
    module, x, place = made(kernel, causal=False, rope="none"), random(4, 20, DIM), torch.arange(20)
    mask = torch.stack((place < 7, place > 14, place % 3 == 1, place < 0))
    y = module(x, context=x.clone(), key_padding_mask=mask)
    assert y.all()
    assert_identical(module(x, context=x, key_padding_mask=mask), y)
