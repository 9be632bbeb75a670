"""apply_rope against complex multiplication, which turns by an angle without any of the library's code."""

import math

import pytest
import torch
from torch import Tensor

from linear_rope import EluPlusOne, apply_rope, linear_attention
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
        expected = turned(x, positions, base=base, layout=layout)
        actual = apply_rope(x, positions, base=base, layout=layout)
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
    with torch.device("meta"):
        found = apply_rope(x, positions)
    assert_near(found, apply_rope(x.clone(), positions))
    with torch.device("meta"):
        found = linear_attention(*[x] * 3, feature_map=EluPlusOne(), causal=True)
    assert_near(found, linear_attention(*[x] * 3, feature_map=EluPlusOne(), causal=True))
