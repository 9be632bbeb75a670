"""RoPE for longer sequences: the published formulas. (All forms of attention under them: with those without them.)

float64 throughout. Frequencies are a few roundings of 1e-16; outputs are compared as in test_linear_attention.py, to
1e-10 of the largest value.
"""

import math

import pytest
import torch
from torch import Tensor

from linear_rope import (
    EluPlusOne,
    FavorPlus,
    FeatureMap,
    NTKAware,
    PositionInterpolation,
    RopeScaling,
    YaRN,
    apply_rope,
    linear_attention,
)
from linear_rope.positions.rotary import rope_frequencies
from tests.linear_rope.tensors import SCALINGS, assert_near, random, random_qkv

YARN = SCALINGS["yarn"]


@pytest.mark.parametrize("scaling", [PositionInterpolation(1), NTKAware(1), YaRN(1, original_length=64)], ids=repr)
def test_a_factor_of_one_changes_nothing(scaling: RopeScaling) -> None:
    torch.testing.assert_close(rope_frequencies(64, scaling=scaling), rope_frequencies(64), rtol=1e-15, atol=0)
    assert scaling.magnitude == 1


def test_interpolation_is_rotation_by_fractions_of_positions() -> None:
    x, positions = random(1, 2, 50, 16), torch.arange(50)
    assert_near(apply_rope(x, positions, scaling=PositionInterpolation(4)), apply_rope(x, positions / 4))


class Power(PositionInterpolation):
    """It has more than what its class compares by."""

    def __init__(self, factor: float, power: float) -> None:
        super().__init__(factor)
        object.__setattr__(self, "power", power)

    def scale(self, frequencies: Tensor) -> Tensor:
        return frequencies / self.factor**self.power  # type: ignore[attr-defined, no-any-return]


def test_scalings_that_compare_equal_have_their_own_angles() -> None:
    x = random(1, 2, 5, 16)
    for positions in (torch.arange(5), torch.arange(5.0)):
        one, five = (apply_rope(x, positions, scaling=Power(2.0, power)) for power in (1, 5))
        assert_near(one, apply_rope(x, torch.arange(5) / 2))
        assert_near(five, apply_rope(x, torch.arange(5) / 32))


@pytest.mark.parametrize("width", [2, 4, 64, 266])
def test_ntk_is_another_base_with_the_fastest_kept_and_the_slowest_divided(width: int) -> None:
    plain, scaled = rope_frequencies(width, base=500.0), rope_frequencies(width, base=500.0, scaling=NTKAware(8))
    assert scaled[0] == plain[0] == 1
    if width > 2:
        torch.testing.assert_close(scaled[-1], plain[-1] / 8, rtol=1e-14, atol=0)
        other = rope_frequencies(width, base=500.0 * 8 ** (width / (width - 2)))
        torch.testing.assert_close(scaled, other, rtol=1e-13, atol=0)


@pytest.mark.parametrize(("length", "base"), [(256, 10000.0), (2048, 10000.0), (64, 500.0)])
def test_yarn_is_the_authors_code(length: int, base: float) -> None:
    """Of jquesnelle/yarn: the ramp is linear in the pair's number, from where pairs turn β times to where they turn α
    times, rounded outwards."""
    width, factor, alpha, beta = 64, 32.0, 1.0, 32.0

    def number(rotations: float) -> float:
        return width * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(number(beta)), 0), min(math.ceil(number(alpha)), width - 1)
    expected = []
    for pair in range(width // 2):
        slowed = min(max((pair - low) / (high - low), 0.0), 1.0)
        plain = base ** (-2 * pair / width)
        expected.append(slowed * plain / factor + (1 - slowed) * plain)
    scaling = YaRN(factor, original_length=length)
    actual = rope_frequencies(width, base=base, scaling=scaling)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    assert scaling.magnitude == 0.1 * math.log(32) + 1


@pytest.mark.parametrize("rope", ["after", "before"])
@pytest.mark.parametrize("feature_map", [FavorPlus(8, 12), FavorPlus(8, 12, paired=True), EluPlusOne()], ids=str)
def test_yarn_s_temperature_is_for_what_estimates_softmax(feature_map: FeatureMap, rope: str) -> None:
    q, k, v = random_qkv(1, 2, 9, width=8)
    actual = linear_attention(q, k, v, feature_map=feature_map, rope=rope, rope_scaling=YARN)
    if rope == "before":
        t = 0.1 * math.log(4) + 1 if isinstance(feature_map, FavorPlus) else 1
        q, k = (t * apply_rope(x, torch.arange(9), scaling=YARN) for x in (q, k))
        expected = linear_attention(q, k, v, feature_map=feature_map, rope="none")
    else:
        q, k = feature_map(q), feature_map(k)
        weights = apply_rope(q, torch.arange(9), scaling=YARN) @ apply_rope(k, torch.arange(9), scaling=YARN).mT
        expected = weights @ v / (q @ k.mT).sum(-1, keepdim=True)
    assert_near(actual, expected)
