"""RoPE for longer sequences: the published formulas, and all forms of attention under them.

float64 throughout. Frequencies are a few roundings of 1e-16; outputs are compared as in test_linear_attention.py, to
1e-10 of the largest value.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from linear_rope import (
    CausalLM,
    EluPlusOne,
    Encoder,
    EncoderDecoder,
    FavorPlus,
    FeatureMap,
    LinearRoPEAttention,
    ModelConfig,
    NTKAware,
    PositionInterpolation,
    RopeScaling,
    SoftmaxRoPEAttention,
    YaRN,
    apply_rope,
    linear_attention,
)
from linear_rope.diagnostics import diagnose
from linear_rope.positions.rotary import rope_frequencies
from tests.linear_rope.tensors import FORMS, assert_near, in_steps, random

SCALINGS = {
    "interpolation": PositionInterpolation(4.0),
    "ntk": NTKAware(4.0),
    "yarn": YaRN(4.0, original_length=64, beta=8.0),
}
BY_SCALING = pytest.mark.parametrize("scaling", SCALINGS.values(), ids=list(SCALINGS))
MAPS: dict[str, FeatureMap] = {
    "favor+": FavorPlus(8, 12),
    "favor+paired": FavorPlus(8, 12, paired=True),
    "elu+1": EluPlusOne(),
}


@pytest.mark.parametrize("scaling", [PositionInterpolation(1), NTKAware(1), YaRN(1, original_length=64)], ids=repr)
def test_a_factor_of_one_changes_nothing(scaling: RopeScaling) -> None:
    torch.testing.assert_close(rope_frequencies(64, scaling=scaling), rope_frequencies(64), rtol=1e-15, atol=0)
    assert scaling.magnitude == 1


def test_interpolation_is_rotation_by_fractions_of_positions() -> None:
    x, positions = random(1, 2, 50, 16), torch.arange(50)
    assert_near(apply_rope(x, positions, scaling=PositionInterpolation(4)), apply_rope(x, positions / 4))


@pytest.mark.parametrize("width", [2, 4, 64, 266])
def test_ntk_is_another_base_with_the_fastest_kept_and_the_slowest_divided(width: int) -> None:
    plain, scaled = rope_frequencies(width, base=500.0), rope_frequencies(width, base=500.0, scaling=NTKAware(8))
    assert scaled[0] == plain[0] == 1
    if width > 2:
        torch.testing.assert_close(scaled[-1], plain[-1] / 8, rtol=1e-14, atol=0)
        other = rope_frequencies(width, base=500.0 * 8 ** (width / (width - 2)))
        torch.testing.assert_close(scaled, other, rtol=1e-13, atol=0)


def test_yarn_is_its_formula_pair_by_pair() -> None:
    """Section 3.2: γ(r) is 0 below α, 1 above β and linear between; r = L·θ / 2π; θ' = (1 − γ)·θ/s + γ·θ."""
    length, factor, alpha, beta = 256, 8.0, 1.0, 32.0
    plain = rope_frequencies(64)
    scaled = rope_frequencies(64, scaling=YaRN(factor, original_length=length))
    kinds = set()
    for before, after in zip(plain.tolist(), scaled.tolist(), strict=True):
        turns = length * before / (2 * math.pi)
        if turns >= beta:
            kinds.add("kept")
            assert after == before
        elif turns <= alpha:
            kinds.add("interpolated")
            assert after == pytest.approx(before / factor, rel=1e-15)
        else:
            kinds.add("between")
            share = (turns - alpha) / (beta - alpha)
            assert before / factor < after < before
            assert after == pytest.approx((1 - share) * before / factor + share * before, rel=1e-14)
    assert kinds == {"kept", "interpolated", "between"}
    assert YaRN(factor, original_length=length).magnitude == 0.1 * math.log(8) + 1


def test_yarn_s_temperature_multiplies_the_scores_of_softmax() -> None:
    torch.manual_seed(0)
    module = SoftmaxRoPEAttention(8, 1, rope_scaling=SCALINGS["yarn"], causal=True).double()
    x = random(1, 9, 8)
    q, k = (apply_rope(f(x), torch.arange(9), scaling=SCALINGS["yarn"]) for f in (module.query, module.key))
    scores = q @ k.mT / math.sqrt(8) * (0.1 * math.log(4) + 1) ** 2
    scores = scores.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -torch.inf)
    assert_near(module(x), module.out(scores.softmax(-1) @ module.value(x)))


@pytest.mark.parametrize("rope", ["after", "before"])
@pytest.mark.parametrize("name", MAPS)
def test_yarn_s_temperature_is_for_what_estimates_softmax(name: str, rope: str) -> None:
    q, k, v = (random(1, 2, 9, 8, seed=seed) for seed in range(3))
    yarn, at = SCALINGS["yarn"], torch.arange(9)
    actual = linear_attention(q, k, v, feature_map=MAPS[name], rope=rope, rope_scaling=yarn)
    if rope == "before":
        t = 1 if name == "elu+1" else 0.1 * math.log(4) + 1
        q, k = (t * apply_rope(x, at, scaling=yarn) for x in (q, k))
        expected = linear_attention(q, k, v, feature_map=MAPS[name], rope="none")
    else:
        plain_q, plain_k = MAPS[name](q), MAPS[name](k)
        weights = apply_rope(plain_q, at, scaling=yarn) @ apply_rope(plain_k, at, scaling=yarn).mT
        expected = weights @ v / (plain_q @ plain_k.mT).sum(-1, keepdim=True)
    assert_near(actual, expected)


@BY_SCALING
@pytest.mark.parametrize("name", MAPS)
def test_the_forms_of_linear_attention_agree(name: str, scaling: RopeScaling) -> None:
    mask = torch.arange(70).expand(2, -1) >= torch.tensor([[70], [50]])
    upstream = random(2, 2, 70, 8, seed=9)
    for rope in ("after", "before"):
        found = []
        for form in FORMS:
            qkv = [random(2, 2, 70, 8, seed=seed).requires_grad_() for seed in range(3)]
            options: dict[str, Any] = dict(feature_map=MAPS[name], rope=rope, causal=True, key_padding_mask=mask)
            y = linear_attention(*qkv, rope_scaling=scaling, implementation=form, **options)
            found.append([y, *torch.autograd.grad(y, qkv, upstream)])
        for other in found[1:]:
            for actual, expected in zip(other, found[0], strict=True):
                assert_near(actual, expected)


@BY_SCALING
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SoftmaxRoPEAttention, {}),
        (LinearRoPEAttention, {}),
        (LinearRoPEAttention, {"rope": "before"}),
        (LinearRoPEAttention, {"feature_map": "elu+1", "denominator": "rotated"}),
    ],
)
def test_decoding_weights_and_state_dicts_go_with_it(kind: Any, options: dict[str, Any], scaling: RopeScaling) -> None:
    torch.manual_seed(0)
    trained, module = (kind(16, 2, causal=True, rope_scaling=given, **options).double() for given in (None, scaling))
    module.load_state_dict(trained.state_dict(), strict=True)
    x = random(2, 40, 16)
    expected = module(x)
    assert (expected - trained(x)).abs().max() > 1e-4
    assert_near(in_steps(module, x, 33), expected)
    v = module.value(x).view(2, 40, 2, 8).transpose(1, 2)
    assert_near(module.out((module.attention_weights(x) @ v).transpose(1, 2).flatten(2)), expected)
    sums = module.attention_weights(x).sum(-1).detach()
    assert diagnose(module, x).row_sums == pytest.approx([float(f(sums)) for f in (torch.min, torch.mean, torch.max)])


@pytest.mark.parametrize("position", ["rope-before", "rope-after"])
def test_trained_weights_are_evaluated_longer_by_another_configuration(position: Any) -> None:
    config = ModelConfig(vocab_size=50, dim=16, layers=1, heads=2, position=position)
    tokens = torch.randint(50, (1, 40), generator=torch.Generator().manual_seed(0))
    for kind in (CausalLM, Encoder):
        trained, longer = kind(config), kind(replace(config, rope_scaling=NTKAware(2)))
        longer.load_state_dict(trained.state_dict(), strict=True)
        assert not torch.equal(trained(tokens), longer(tokens))
    model = EncoderDecoder(replace(config, rope_scaling=NTKAware(2)))
    assert model(tokens, tokens).isfinite().all()
