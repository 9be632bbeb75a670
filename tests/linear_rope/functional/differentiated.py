"""Feature maps with and without things to learn, and the gradients of attention through them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import EluPlusOne, FavorPlus, FeatureMap, ReluFeatures, linear_attention
from linear_rope.features import Features
from tests.linear_rope.tensors import assert_near, random, random_qkv

B, H, D, M = 3, 3, 4, 6


class Learned(FeatureMap):
    """exp(x W) with a matrix for each head, scaled as FAVOR+ is; W is (H, D, M), the temperature a scalar."""

    def __init__(self) -> None:
        super().__init__(D, M)
        self.weight = nn.Parameter(random(H, D, M, seed=50))
        self.temperature = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def features(self, x: Tensor) -> Features:
        projected = x @ self.weight.to(x.dtype) * self.temperature.to(x.dtype)
        largest = projected.detach().amax(-1, keepdim=True)
        return Features((projected - largest).exp(), largest)


class Plain(FeatureMap):
    """A user's map without a scale of its own, and with a parameter that no input reaches."""

    def __init__(self) -> None:
        super().__init__(D, D)
        self.slope = nn.Parameter(random(D, seed=51))
        self.unused = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def features(self, x: Tensor) -> Features:
        return Features(nn.functional.softplus(x * self.slope.to(x.dtype)) + 0.1, None)


# ε is relative to a maximum, which is a constant for autograd; without it gradients are those of the function itself.
MAPS: dict[str, Callable[[], FeatureMap]] = {
    "favor+": lambda: FavorPlus(D, M, eps=0.0),
    "favor+hyperbolic": lambda: FavorPlus(D, M, hyperbolic=True, eps=0.0),
    "favor+paired": lambda: FavorPlus(D, M, paired=True, eps=0.0),
    "elu+1": EluPlusOne,
    "elu+1+paired": lambda: EluPlusOne(paired=True),
    "relu": lambda: ReluFeatures(eps=1e-1),
    "learned": Learned,
    "plain": Plain,
}
BY_NAME = pytest.mark.parametrize("name", MAPS)


def leaves(batch: int, heads: int, length: int, width: int = D, seed: int = 0) -> list[Tensor]:
    return [x.requires_grad_() for x in random_qkv(batch, heads, length, width=width, seed=seed)]


def options_of(feature_map: FeatureMap, rope: str, denominator: str, length: int) -> dict[str, Any]:
    positions = torch.arange(length) / (10 * length) if denominator == "rotated" else torch.arange(length)
    return dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=True, positions=positions)


def gradients(qkv: list[Tensor], implementation: str = "chunked", **options: Any) -> tuple[Tensor, list[Tensor]]:
    """The output, and the gradients of q, k, v and of all that the feature map learns, zero where there is none."""
    held = (*options["feature_map"].parameters(), *options["feature_map"].buffers())
    wanted = [*qkv, *(x for x in held if x.requires_grad)]
    output = linear_attention(*qkv, implementation=implementation, **options)
    upstream = random(*output.shape, seed=99).to(output)
    return output.detach(), list(
        torch.autograd.grad(output, wanted, upstream, allow_unused=True, materialize_grads=True)
    )


def assert_agree(actual: tuple[Tensor, list[Tensor]], expected: tuple[Tensor, list[Tensor]]) -> None:
    """Gradients on one scale: that of q is zero but for rounding where there is one token."""
    assert_near(actual[0], expected[0])
    got, wanted = (torch.cat([gradient.flatten() for gradient in result[1]]) for result in (actual, expected))
    assert_near(got, wanted)
