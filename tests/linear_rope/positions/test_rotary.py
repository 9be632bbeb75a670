"""apply_rope against complex multiplication, which turns by an angle without any of the library's code; and RoPE for
longer sequences by the published formulas. (All forms of attention under these: with those without them.)

float64 throughout. Frequencies are a few roundings of 1e-16; outputs are compared as in test_linear_attention.py, to
1e-10 of the largest value.
"""

import math

import pytest
import torch
from torch import Tensor

from linear_rope import EluPlusOne, NTKAware, PositionInterpolation, YaRN, apply_rope, linear_attention
from linear_rope.positions.rotary import rope_frequencies
from tests.linear_rope.tensors import assert_near, random

LAYOUTS = ("interleaved", "half")


def turned(x: Tensor, positions: Tensor, *, base: float = 10000.0, layout: str = "interleaved") -> Tensor:
    """x (B, H, N, width) times exp(i·m·θ), in float64; positions (N,) or (B, N)."""
    width = x.shape[-1]
    theta = torch.tensor([base ** (-2 * i / width) for i in range(width // 2)], dtype=torch.float64)
    angles = positions.double()[..., None] * theta
    if positions.dim() == 2:
        angles = angles[:, None]
    x = x.double()
    first, second = (x[..., 0::2], x[..., 1::2]) if layout == "interleaved" else x.chunk(2, dim=-1)
    product = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    if layout == "half":
        return torch.cat((product.real, product.imag), dim=-1)
    return torch.view_as_real(product).flatten(-2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [2, 6, 16])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_equals_complex_multiplication(layout: str, width: int, base: float) -> None:
    # Pairs that begin in the middle of what is a pair in memory.
    x = random(1 + 2 * 3 * 11 * width)[1:].view(2, 3, 11, width)
    per_sequence = torch.stack((torch.arange(11) * 7, torch.arange(11) - 5))
    for positions in (torch.arange(11), torch.arange(11) * 0.25 + 900, per_sequence):
        actual = apply_rope(x, positions, base=base, layout=layout)
        expected = turned(x, positions, base=base, layout=layout)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
        # Any number of axes may come first.
        for at in ((slice(None), 0), (slice(None), slice(2), None)):
            torch.testing.assert_close(apply_rope(x[at], positions, base=base, layout=layout), actual[at])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_low_precision_is_the_rounding_of_the_exact_rotation(layout: str) -> None:
    """Positions beyond 256 do not exist in bfloat16, so the angles must not be made in it."""
    for dtype, first in ((torch.bfloat16, 0), (torch.float16, 0), (torch.float32, 0), (torch.float32, 100_000)):
        x, positions = random(1, 1, 2048, 64).to(dtype), first + torch.arange(2048)
        rotated = apply_rope(x, positions, layout=layout)
        assert rotated.dtype == dtype
        # Half a unit in the last place of the result, and float32's rounding of angle and products.
        largest = float(x.abs().max()) * math.sqrt(2)
        tolerance = torch.finfo(dtype).eps / 2 * largest + 1e-6 * largest
        torch.testing.assert_close(rotated.double(), turned(x, positions, layout=layout), rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_few_positions_turn_as_many_do_and_again(dtype: torch.dtype) -> None:
    """Rotations of few are kept, those of many are not; sines of few and of many may be rounded otherwise."""
    x, positions = random(2, 3, 100, 8), torch.arange(200).view(2, 100).to(dtype) * 7
    for x_dtype, places in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        expected = apply_rope(x.to(x_dtype), positions)[:, :, :5]
        for _ in range(2):
            few = apply_rope(x[:, :, :5].to(x_dtype), positions[:, :5])
            torch.testing.assert_close(few, expected, atol=places, rtol=places)


def test_a_default_device_that_holds_nothing_changes_nothing() -> None:
    """What is kept for the next call is made on the device of the tensors."""
    x, positions = random(1, 2, 3, 34), torch.arange(3) + 0.125
    for call in (
        lambda x: apply_rope(x, positions),
        lambda x: linear_attention(*[x] * 3, feature_map=EluPlusOne(), causal=True),
    ):
        with torch.device("meta"):
            found = call(x)
        assert_near(found, call(x.clone()))


def test_a_factor_of_one_changes_nothing_and_interpolation_divides_positions() -> None:
    for scaling in (PositionInterpolation(1), NTKAware(1), YaRN(1, original_length=64)):
        torch.testing.assert_close(rope_frequencies(64, scaling=scaling), rope_frequencies(64), rtol=1e-15, atol=0)
        assert scaling.magnitude == 1
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
