"""The norm of queries and keys against its formula, written out in float64.

Decoding, padding, causality and gradients of modules that have it are in test_contracts.py.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import EluPlusOne, LinearRoPEAttention, SoftmaxRoPEAttention, apply_rope
from linear_rope.attention import GatedDelta, Retention, RoPEAttention, WindowedFavor
from linear_rope.attention.head_norm import HeadNorm
from linear_rope.features import FEATURE_MAPS, RANDOM_MAPS
from tests.linear_rope.attention.modules import DIM, made
from tests.linear_rope.tensors import HEADS, D, assert_identical, assert_near, random, some_padding

LENGTH = 70
KERNELS = ("softmax", "favor+", "elu+1")
EPS = 1e-6


def by_hand(x: Tensor, gain: Tensor) -> Tensor:
    """(B, H, N, D), normalised."""
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * gain[:, None, None]


def heads_of(module: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised queries and keys, and the values, (B, H, N, D) each."""
    q, k, v = (part(x).unflatten(-1, (HEADS, D)).transpose(1, 2) for part in (module.query, module.key, module.value))
    return by_hand(q, module.query_norm.gain), by_hand(k, module.key_norm.gain), v


def with_gradients(module: RoPEAttention, x: Tensor, y: Tensor) -> list[Tensor]:
    return [y, *torch.autograd.grad(y, [x, *module.parameters()], random(*y.shape, seed=99))]


def attended(kernel: str, rope: str, module: Any, q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
    """Causal attention, pair by pair: RoFormer's eq. 16 and 19, and eq. 19's rotation before the map or none."""
    at = (~padding).cumsum(-1) - 1

    def turned(x: Tensor) -> Tensor:
        return apply_rope(x, at.clamp(min=0))

    if rope == "before":
        q, k = turned(q), turned(k)
    if kernel == "softmax":
        above = below = (q @ k.mT / math.sqrt(D)).exp()
    else:
        q, k = module.feature_map(q), module.feature_map(k)
        below = q @ k.mT
        above = turned(q) @ turned(k).mT if rope == "after" else below
    seen = torch.ones(q.shape[-2], k.shape[-2]).tril() * ~padding[:, None, None]
    return (above * seen) @ v / (below * seen).sum(-1, keepdim=True)


@pytest.mark.parametrize("rope", ["after", "before", "none"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_outputs_and_gradients_are_those_of_a_plain_computation(kernel: str, rope: str) -> None:
    if kernel == "softmax" and rope == "after":
        rope = "before"
    module, x, padding = made(kernel, rope=rope, qk_norm=True), random(2, LENGTH, DIM), some_padding(2, LENGTH)
    x = x.masked_fill(padding.unsqueeze(-1), 0).requires_grad_()
    heads = attended(kernel, rope, module, *heads_of(module, x), padding)
    expected = module.out(heads.transpose(1, 2).flatten(2))
    there = ~padding.unsqueeze(-1)
    actual = module(x, key_padding_mask=padding)
    assert_near(with_gradients(module, x, actual * there), with_gradients(module, x, expected * there))


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_comes_after_the_short_convolution(kernel: str) -> None:
    module, x = made(kernel, short_conv=4, qk_norm=True), random(2, LENGTH, DIM)
    projected = module.project(x, x)
    for found, norm in ((projected.q, module.query_norm), (projected.k, module.key_norm)):
        assert isinstance(norm, HeadNorm)
        largest = norm.gain.detach().abs()[:, None].expand_as(found[..., 0])
        # The mean squares here are above 0.001, of which ε is a thousandth.
        torch.testing.assert_close(found.square().mean(-1).sqrt(), largest, rtol=1e-3, atol=0)


@pytest.mark.parametrize("kernel", [LinearRoPEAttention, SoftmaxRoPEAttention])
def test_a_context_is_normalised_when_it_is_read_and_when_it_is_remembered(kernel: Any) -> None:
    module = kernel(DIM, HEADS, rope="none", qk_norm=True).double()
    with torch.no_grad():
        module.query_norm.gain.copy_(torch.tensor([0.5, 2.0]))
        module.key_norm.gain.copy_(torch.tensor([3.0, 0.3]))
    x, context, padding = random(2, 5, DIM), random(2, 7, DIM, seed=1), some_padding(2, 7)
    (q, _, _), (_, k, v) = heads_of(module, x), heads_of(module, context)
    scores = (q @ k.mT / math.sqrt(D)).exp()
    if kernel is LinearRoPEAttention:
        scores = module.feature_map(q) @ module.feature_map(k).mT
    scores = scores * ~padding[:, None, None]
    expected = module.out((scores @ v / scores.sum(-1, keepdim=True)).transpose(1, 2).flatten(2))
    assert_near(module(x, context, padding), expected)
    assert_near(module.recall(x, module.remember(context, padding)), expected)


class Shorter(EluPlusOne):
    """A map of one's own."""

    initial_gain = 0.5


def test_gains_begin_as_the_feature_map_says() -> None:
    expected = dict.fromkeys(FEATURE_MAPS, 1.0) | dict.fromkeys(RANDOM_MAPS, 0.35)
    modules: list[tuple[Any, float]] = [
        (LinearRoPEAttention(DIM, HEADS, feature_map=name, rope="none", qk_norm=True), gain)
        for name, gain in expected.items()
    ]
    modules += [(LinearRoPEAttention(DIM, HEADS, feature_map=Shorter(), qk_norm=True), 0.5)]
    modules += [(kernel(DIM, HEADS, qk_norm=True), 1.0) for kernel in (SoftmaxRoPEAttention, Retention)]
    modules += [(WindowedFavor(DIM, HEADS, qk_norm=True), 0.35)]
    for module, gain in modules:
        for norm in (module.query_norm, module.key_norm):
            assert_identical(norm.gain.detach(), torch.full((HEADS,), gain))


def test_the_delta_rule_has_vectors_of_length_one_with_and_without_it() -> None:
    plain, module = (GatedDelta(DIM, HEADS, qk_norm=qk_norm) for qk_norm in (False, True))
    module.load_state_dict(plain.state_dict(), strict=True)
    x = random(2, 9, DIM).float()
    assert_identical(module(x), plain(x))


def assert_rounded(found: Tensor, exact: Tensor) -> None:
    """Off by the rounding to the dtype of ``found``, and a thousandth of it for float32's before."""
    limits = torch.finfo(found.dtype)
    allowed = 1.001 * limits.eps / 2 * exact.abs().clamp(min=limits.smallest_normal)
    assert ((found.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_is_computed_in_float32_at_least(dtype: torch.dtype) -> None:
    norm = HeadNorm(HEADS, 0.5).to(dtype)  # a gain that both types hold
    # Squares of 30,000 are more than float16 holds.
    x = (random(2, HEADS, 9, 300) * 30_000).clamp(-60_000, 60_000).to(dtype)
    assert norm(x).dtype == dtype
    assert_rounded(norm(x), by_hand(x.double(), norm.gain.double()))


@pytest.mark.parametrize("kernel", KERNELS)
def test_autocast_does_not_lower_its_precision(kernel: str) -> None:
    module, x = made(kernel, qk_norm=True).float(), random(2, 30, DIM).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module.project(x, x)
        before = [part(x).unflatten(-1, (HEADS, D)).transpose(1, 2) for part in (module.query, module.key)]
    for after, one, norm in zip((found.q, found.k), before, (module.query_norm, module.key_norm), strict=True):
        assert isinstance(norm, HeadNorm)
        assert after.dtype == one.dtype == torch.bfloat16
        assert_rounded(after, by_hand(one.double(), norm.gain.detach().double()))
