"""apply_rope against complex multiplication, which turns by an angle without any of the library's code."""

import math

import pytest
import torch
from torch import Tensor

from linear_rope import apply_rope

LAYOUTS = ("interleaved", "half")


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


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
    x = random(2, 3, 11, width)
    per_sequence = torch.stack((torch.arange(11) * 7, torch.arange(11) - 5))
    for positions in (torch.arange(11), torch.arange(11) * 0.25 + 900, per_sequence):
        expected = turned(x, positions, base=base, layout=layout)
        torch.testing.assert_close(apply_rope(x, positions, base=base, layout=layout), expected, rtol=0, atol=1e-12)


def test_takes_any_number_of_leading_axes() -> None:
    x = random(2, 3, 4, 5, 6)
    once = torch.arange(5)
    expected = turned(x.view(2, 12, 5, 6), once).view(x.shape)
    torch.testing.assert_close(apply_rope(x, once), expected)
    torch.testing.assert_close(apply_rope(x, once.expand(2, 5)), expected)
    torch.testing.assert_close(apply_rope(x[0, 0, 0], once), expected[0, 0, 0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_keeps_the_norm_and_position_zero(layout: str) -> None:
    x = random(1, 2, 50, 8)
    rotated = apply_rope(x, torch.arange(50) * 1000, layout=layout)
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotated[:, :, 0], x[:, :, 0], rtol=0, atol=0)
    assert not torch.allclose(rotated[:, :, 1:], x[:, :, 1:])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_depend_on_the_distance_only(layout: str) -> None:
    q, k = random(1, 1, 20, 8), random(1, 1, 20, 8, seed=1)
    positions = torch.arange(20)

    def scores(shift: int) -> Tensor:
        return apply_rope(q, positions + shift, layout=layout) @ apply_rope(k, positions + shift, layout=layout).mT

    # An angle of size a is rounded by up to a·1e-16: about 1e-11 at position 100,000.
    for shift in (1, 1000, 100_000):
        torch.testing.assert_close(scores(shift), scores(0), rtol=0, atol=1e-9)
    one_sided = apply_rope(q, positions + 1, layout=layout) @ apply_rope(k, positions, layout=layout).mT
    assert not torch.allclose(one_sided, scores(0), atol=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_low_precision_is_the_rounding_of_the_exact_rotation(layout: str) -> None:
    """Positions beyond 256 do not exist in bfloat16, so the angles must not be made in it."""
    positions = torch.arange(2048)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = random(1, 1, 2048, 64, dtype=dtype)
        rotated = apply_rope(x, positions, layout=layout)
        assert rotated.dtype == dtype
        # Half a unit in the last place of the result, and float32's rounding of angle and products.
        largest = float(x.abs().max()) * math.sqrt(2)
        tolerance = torch.finfo(dtype).eps / 2 * largest + 1e-6 * largest
        torch.testing.assert_close(rotated.double(), turned(x, positions, layout=layout), rtol=0, atol=tolerance)


def test_far_positions_are_exact_in_float32() -> None:
    x, positions = random(1, 1, 64, 32, dtype=torch.float32), 100_000 + torch.arange(64)
    torch.testing.assert_close(apply_rope(x, positions).double(), turned(x, positions), rtol=0, atol=3e-6)


def test_an_earlier_call_in_bfloat16_leaves_no_trace() -> None:
    x, positions = random(1, 1, 300, 8, dtype=torch.float32), torch.arange(300)
    before = apply_rope(x, positions)
    apply_rope(x.bfloat16(), positions)
    torch.testing.assert_close(apply_rope(x, positions), before, rtol=0, atol=0)


def test_gradient_turns_back() -> None:
    x, upstream = random(1, 2, 9, 6).requires_grad_(), random(1, 2, 9, 6, seed=1)
    (gradient,) = torch.autograd.grad(apply_rope(x, torch.arange(9)), x, upstream)
    torch.testing.assert_close(gradient, turned(upstream, -torch.arange(9)))


@pytest.mark.parametrize(
    ("shape", "positions", "options", "words"),
    [
        ((4, 5), torch.arange(4), {}, ["width", "5", "even"]),
        ((4, 6), torch.arange(4), {"layout": "pairs"}, ["layout", "'pairs'", "'interleaved'", "'half'"]),
        ((4, 6), torch.arange(3), {}, ["positions", "(3,)", "(4,)"]),
        ((2, 1, 4, 6), torch.zeros(3, 4), {}, ["positions", "(3, 4)", "(4,)", "(2, 4)"]),
        ((4, 6), torch.zeros(4, dtype=torch.bool), {}, ["positions", "torch.bool", "integers or floats"]),
        ((6,), torch.arange(6), {}, ["x", "(6,)", "(..., N, width)"]),
        ((4, 6), torch.arange(4), {"base": 0.0}, ["base", "0.0", "positive"]),
        ((4, 6), torch.arange(4), {"base": math.inf}, ["base", "inf", "positive"]),
    ],
)
def test_wrong_arguments(shape: tuple[int, ...], positions: Tensor, options: dict, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"give|choose") as error:
        apply_rope(torch.zeros(shape), positions, **options)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_integers_are_not_rotated() -> None:
    with pytest.raises(ValueError, match=r"x has dtype torch\.int64; give a floating-point tensor"):
        apply_rope(torch.zeros(4, 6, dtype=torch.int64), torch.arange(4))
