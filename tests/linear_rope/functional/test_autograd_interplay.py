"""Feature maps of users, second derivatives, function transforms and forward mode through causal attention."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from linear_rope import EluPlusOne, FavorPlus, FeatureMap, linear_attention
from linear_rope.features import Features
from tests.linear_rope.functional.differentiated import (
    BY_NAME,
    MAPS,
    B,
    D,
    H,
    Learned,
    M,
    Plain,
    assert_agree,
    gradients,
    leaves,
    options_of,
)
from tests.linear_rope.tensors import SETTINGS, assert_near, random, some_padding


class Squared(FavorPlus):
    """A subclass that maps in another way."""

    def features(self, x: Tensor) -> Features:
        values, log_scale = super().features(x)
        return Features(values.square(), None if log_scale is None else 2 * log_scale)


class ShiftedElu(EluPlusOne):
    """The same, of a map without draws."""

    def features(self, x: Tensor) -> Features:
        return Features(super().features(x - 1).values, None)


class OneSided(FavorPlus):
    """A subclass that maps queries in another way than keys."""

    def queries(self, q: Tensor) -> Features:
        return super().queries(q / 2)


def with_trained_draw() -> FavorPlus:
    feature_map = FavorPlus(D, M).double()
    feature_map.omega.requires_grad_(True)
    return feature_map


USERS: dict[str, Callable[[], FeatureMap]] = {
    "per head": Learned,
    "unused parameter": Plain,
    "subclass": lambda: Squared(D, M),
    "subclass of elu+1": ShiftedElu,
    "other queries": lambda: OneSided(D, M),
    "omega learns": with_trained_draw,
}


@pytest.mark.parametrize("user", USERS)
def test_maps_of_users_are_used_as_they_are(user: str) -> None:
    feature_map, qkv = USERS[user](), leaves(B, H, 150)
    for rope, denominator in SETTINGS:
        options = options_of(feature_map, rope, denominator, 150) | {"key_padding_mask": some_padding(B, 150)}
        actual, expected = gradients(qkv, **options), gradients(qkv, "reference", **options)
        assert_agree(actual, expected)
        for got, wanted in zip(actual[1][3:], expected[1][3:], strict=True):
            assert_near(got, wanted)
        if user in ("per head", "omega learns"):
            assert len(actual[1]) > 3
            assert all(gradient.any() for gradient in actual[1])


class Noisy(Plain):
    """Draws random numbers at each call."""

    def features(self, x: Tensor) -> Features:
        return Features(nn.functional.dropout(super().features(x).values, 0.5), None)


class NoisyKeys(Plain):
    """Draws random numbers for keys alone."""

    def keys(self, x: Tensor) -> Features:
        return Features(self.features(x).values * torch.rand(()), None)


class Unregistered(Plain):
    """Learns a tensor that is not one of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [torch.ones(D, dtype=torch.float64, requires_grad=True)]

    def features(self, x: Tensor) -> Features:
        return Features(super().features(x).values * self.hidden[0].to(x.dtype), None)


@pytest.mark.parametrize(
    ("make", "says"), [(Noisy, "random numbers"), (NoisyKeys, "random numbers"), (Unregistered, "nn.Parameter")]
)
def test_maps_that_cannot_map_again_are_refused(make: Callable[[], FeatureMap], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        linear_attention(*leaves(B, H, 7), feature_map=make(), causal=True)


@BY_NAME
def test_second_derivatives_are_refused_or_right(name: str) -> None:
    qkv, options = leaves(1, H, 5), options_of(MAPS[name](), "after", "unrotated", 5)
    output = linear_attention(*qkv, implementation="chunked", **options)
    # Also for a loss that is linear in the output, whose gradient would come back as if it were a constant.
    for loss in (output.square().sum(), output.sum()):
        with pytest.raises(RuntimeError, match='implementation="reference"'):
            torch.autograd.grad(loss, qkv[:1], create_graph=True)

    def attend(*qkv: Tensor) -> Tensor:
        return linear_attention(*qkv, implementation="reference", **options)

    assert torch.autograd.gradgradcheck(attend, qkv, fast_mode=True, atol=1e-5)


# What vmap has no rule for it does one by one, with this warning.
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("rope", ["after", "before", "none"])
@pytest.mark.parametrize("name", ["favor+", "elu+1", "learned"])
def test_function_transforms_equal_autograd(name: str, rope: str) -> None:
    options = options_of(MAPS[name](), rope, "unrotated", 70)
    pairs = [leaves(B, H, 70, seed=seed) for seed in range(2)]
    qkv = [torch.stack(both).detach() for both in zip(*pairs, strict=True)]
    upstream = random(*qkv[0].shape[1:], seed=99)
    expected = [gradients(pair, **options) for pair in pairs]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return linear_attention(q, k, v, **options)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (attend(q, k, v) * upstream).sum()

    assert_near(torch.func.vmap(attend)(*qkv), torch.stack([output for output, _ in expected]))
    first = torch.func.grad(loss, argnums=(0, 1, 2))(*(x[0] for x in qkv))
    each = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*qkv)
    for index in range(3):
        assert_near(first[index], expected[0][1][index])
        assert_near(each[index], torch.stack([found[index] for _, found in expected]))


# PyTorch's own tables of forward-mode derivatives are written in TorchScript.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_mode_derivatives_equal_those_of_the_reference() -> None:
    qkv, found = [x.detach() for x in leaves(B, H, 70)], []
    for implementation in ("chunked", "reference"):
        with forward_ad.dual_level():
            q = forward_ad.make_dual(qkv[0], random(*qkv[0].shape, seed=7))
            y = linear_attention(q, *qkv[1:], feature_map=FavorPlus(D, M), causal=True, implementation=implementation)
            found.append(forward_ad.unpack_dual(y).tangent)
    assert_near(*found)
