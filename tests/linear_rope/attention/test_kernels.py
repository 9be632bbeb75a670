"""The kernels besides FAVOR+, elu+1 and relu: what they compute."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from linear_rope import apply_rope
from linear_rope.attention import GatedDelta, WindowedFavor
from linear_rope.features import Hedgehog, Taylor
from linear_rope.ops.delta.definition import delta_reference
from tests.linear_rope.attention.modules import DIM, made
from tests.linear_rope.tensors import (
    FORMS,
    HEADS,
    D,
    assert_near,
    outputs_and_gradients,
    random,
    random_qkv,
    some_padding,
)


def test_taylor_features_are_the_exponential_up_to_its_second_power() -> None:
    for width in (3, 4):
        q, k = random(5, width), random(7, width, seed=1)
        score = q @ k.T / math.sqrt(width)
        feature_map = Taylor(width)
        assert feature_map(q).shape == (5, feature_map.count(width))
        assert feature_map.count(width) % 2 == 0
        assert_near(feature_map(q) @ feature_map(k).T, 1 + score + score**2 / 2)


def test_hedgehog_features_are_exponentials_of_both_signs() -> None:
    feature_map, x = Hedgehog(4, eps=0.0).double(), random(5, 4)
    with torch.no_grad():
        feature_map.weight.copy_(random(4, 4, seed=1))
    projected = x + x @ feature_map.weight.T
    assert_near(feature_map(x), torch.cat((projected.exp(), (-projected).exp()), dim=-1))


@pytest.mark.parametrize(
    "options", [{}, {"activation": "silu"}, {"activation": "silu", "qk_norm": True, "short_conv": 4}]
)
def test_retention_is_its_formula(options: dict[str, Any]) -> None:
    module, x = made("retention", **options), random(2, 33, DIM)
    projected = module.project(x, x)
    positions = torch.arange(33)
    q, k = (each * each.sigmoid() if options else each for each in (projected.q, projected.k))
    q, k = (apply_rope(each, positions) for each in (q, k))
    behind = positions.unsqueeze(-1) - positions
    kept = 1 - 2.0 ** (-5 - torch.arange(HEADS, dtype=torch.float64))
    fading = torch.where(behind >= 0, kept.view(-1, 1, 1) ** behind.clamp(min=0), 0)
    y = F.rms_norm((q @ k.mT * fading) @ projected.v, (D,), eps=1e-6)
    assert_near(module(x), module.out(y.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("rope", ["after", "none"])
def test_the_gated_delta_rule_is_its_formula(rope: str) -> None:
    module, x = made("delta", rope=rope), random(2, 70, DIM)
    q, k, v = (part(x).unflatten(-1, (HEADS, D)).transpose(1, 2) for part in (module.query, module.key, module.value))
    q, k = (each / each.norm(dim=-1, keepdim=True) for each in (q, k))
    if rope == "after":
        q, k = (apply_rope(each, torch.arange(70)) for each in (q, k))
    y, _ = delta_reference(q, k, v, module.rate(x).sigmoid().mT, module.decay(x))
    y = F.rms_norm(y.transpose(1, 2), (D,), eps=1e-6)
    assert_near(module(x), module.out(y.flatten(2)))


@pytest.mark.parametrize("rope", ["after", "before", "none"])
@pytest.mark.parametrize("make_map", [Hedgehog, Taylor])
def test_other_maps_have_the_quadratic_reference_s_values_and_gradients(make_map: Any, rope: str) -> None:
    feature_map = make_map(4).double()
    with torch.no_grad():
        for parameter in feature_map.parameters():
            parameter.copy_(random(*parameter.shape, seed=5) / 2)
    for length, causal in ((1, True), (17, True), (70, True), (17, False)):
        options = dict(feature_map=feature_map, rope=rope, causal=causal, key_padding_mask=some_padding(2, length))
        qkv = random_qkv(2, HEADS, length, width=4)
        expected = outputs_and_gradients(qkv, implementation="reference", **options)
        for form in FORMS:
            if causal or form != "recurrent":
                assert_near(outputs_and_gradients(qkv, implementation=form, **options), expected)


def test_the_delta_rule_recalls_what_it_was_told_last() -> None:
    """With β = 1 and no decay, the value under a key is the last one: reading with that key gives it back."""
    module = GatedDelta(DIM, HEADS, rope="none", decay="none").double()
    x = random(1, 6, DIM)
    projected = module.project(x, x)
    key = projected.k[:, :, :1].expand_as(projected.k)
    told = projected._replace(q=key, k=key, rate=torch.ones_like(projected.rate))
    assert_near(module._attend(told), projected.v)


@pytest.mark.parametrize("kernel", [GatedDelta, WindowedFavor])
def test_what_goes_from_token_to_token_is_causal(kernel: type) -> None:
    with pytest.raises(ValueError, match="give causal=True"):
        kernel(DIM, HEADS, causal=False)
