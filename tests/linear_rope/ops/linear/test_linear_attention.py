"""linear_attention: the reference against the definition, and every implementation against the reference.

How the tolerances come about. An output is a quotient of sums of at most N·M products. In float64 a product is rounded
by 1e-16; even added up over N·M = 2000 terms and divided by a sum of signed weights that nearly cancels, 1e-10 of the
largest value leaves a factor of a thousand. In float32 (6e-8) errors of random sign grow with the root of the number
of terms, to about 3e-6, so 1e-5. bfloat16 inputs are computed with in float32, and only outputs and gradients are
rounded (4e-3), so 2e-2. Gradients of q, k and v are compared on one scale, the largest of the three: for a sequence of
one token the first two are zero but for rounding.

With denominator="rotated" a row's signed weights can cancel, and then the quotient magnifies rounding without bound:
that is the option's own doing. Its forms are compared at positions in [0, 0.1), where nothing cancels.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import EluPlusOne, FavorPlus, FeatureMap, apply_rope, linear_attention
from linear_rope.features import Features, GivenFeatures, Hedgehog
from tests.linear_rope.tensors import (
    FAST,
    HEADS,
    SETTINGS,
    TOLERANCES,
    D,
    M,
    assert_identical,
    assert_near,
    outputs_and_gradients,
    random_qkv,
    slow_positions,
    some_padding,
)


def by_definition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: FeatureMap,
    rope: str,
    denominator: str,
    causal: bool,
    positions: tuple[Tensor, Tensor],
    rope_base: float,
    key_padding_mask: Tensor,
) -> Tensor:
    """Eq. 19 and its variations, one query at a time."""
    if rope == "before":
        q, k = (apply_rope(x, at, base=rope_base) for x, at in zip((q, k), positions, strict=True))
    plain_q, plain_k = feature_map(q), feature_map(k)
    q, k = plain_q, plain_k
    if rope == "after":
        q, k = (apply_rope(x, at, base=rope_base) for x, at in zip((q, k), positions, strict=True))
    if denominator == "rotated":
        plain_q, plain_k = q, k
    visible = (~key_padding_mask).to(q.dtype)
    rows = []
    for m in range(q.shape[2]):
        seen = visible * (torch.arange(k.shape[2]) <= m) if causal else visible
        row = torch.einsum("bhd,bhnd,bn,bhne->bhe", q[:, :, m], k, seen, v)
        if denominator != "none":
            row = row / torch.einsum("bhd,bhnd,bn->bh", plain_q[:, :, m], plain_k, seen)[..., None]
        rows.append(row)
    return torch.stack(rows, dim=2)


def assert_form(
    qkv: list[Tensor],
    form: str,
    tolerance: float = 1e-10,
    function: Callable[..., Tensor] = linear_attention,
    **options: Any,
) -> None:
    """The form gives the float64 reference's values and gradients."""
    expected = outputs_and_gradients([x.double() for x in qkv], implementation="reference", **options)
    assert_near(outputs_and_gradients(qkv, function, implementation=form, **options), expected, tolerance)


@pytest.mark.parametrize("kind", ["causal", "bidirectional", "cross"])
def test_reference_is_the_definition(feature_map: FeatureMap, kind: str) -> None:
    queries, keys = (7, 11) if kind == "cross" else (9, 9)
    qkv = random_qkv(2, HEADS, queries, keys)
    for rope in ("after", "before", "none"):
        for denominator in ("unrotated", "rotated", "none"):
            options = {
                "feature_map": feature_map,
                "rope": rope,
                "denominator": denominator,
                "causal": kind == "causal",
                "positions": (torch.arange(queries) * 3, torch.stack((torch.arange(keys), 5 + torch.arange(keys) * 2))),
                "rope_base": 50.0,
                "key_padding_mask": some_padding(2, keys),
            }
            actual = outputs_and_gradients(qkv, implementation="reference", **options)
            assert_near(actual, outputs_and_gradients(qkv, by_definition, **options))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 17, 257])
@pytest.mark.parametrize("form", FAST)
def test_every_implementation_gives_the_reference_s_values_and_gradients(
    feature_map: FeatureMap, form: str, length: int, causal: bool
) -> None:
    qkv = random_qkv(2, HEADS, length)
    # Chunks end and stretches begin in a long sequence; the recurrence takes one token like another, and long for it.
    for rope, denominator in SETTINGS[:1] if (form, length) == ("recurrent", 257) else SETTINGS:
        positions = torch.stack((torch.arange(length) + 1000, torch.arange(length) * 2))
        if denominator == "rotated":
            positions = slow_positions(length).expand(2, -1)
        options = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=causal, positions=positions)
        assert_form(qkv, form, key_padding_mask=some_padding(2, length), **options)


def autocasting(*qkv: Tensor, **options: Any) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return linear_attention(*qkv, **options)


@pytest.mark.parametrize(
    ("dtype", "function"),
    [(torch.float32, linear_attention), (torch.float32, autocasting), (torch.bfloat16, linear_attention)],
)
def test_low_precision_is_close_to_float64(
    dtype: torch.dtype, function: Callable[..., Tensor], feature_map: FeatureMap, form: str
) -> None:
    for length, causal in ((17, False), (65, True)):
        qkv = [x.to(dtype) for x in random_qkv(2, HEADS, length)]
        for rope, denominator in SETTINGS:
            positions = slow_positions(length) if denominator == "rotated" else None
            options = dict(feature_map=feature_map, rope=rope, denominator=denominator, positions=positions)
            assert_form(qkv, form, TOLERANCES[dtype], function, causal=causal, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["favor+", "elu+1", "own"])
def test_long_sequences_with_many_features(name: str) -> None:
    """Longer and wider than what an implementation works on at a time."""
    wide = FavorPlus(D, 512 if name == "own" else 1024, eps=0.0).double()
    wide.omega.requires_grad_(name == "own")
    feature_map = EluPlusOne() if name == "elu+1" else wide
    qkv = random_qkv(2, HEADS, 1100)
    options = dict(feature_map=feature_map, causal=True, key_padding_mask=some_padding(2, 1100))
    assert_form(qkv, "auto", positions=torch.arange(1100) * torch.tensor([[1.0], [0.5]]), **options)


class OneSided(FavorPlus):
    """A subclass that maps queries in another way than keys."""

    def queries(self, q: Tensor) -> Features:
        return super().queries(q / 2)


@pytest.mark.parametrize("make", [lambda: OneSided(D, M), GivenFeatures])
def test_maps_are_used_as_they_are_and_write_nothing_into_inputs(make: Any) -> None:
    qkv, feature_map = [x.abs() for x in random_qkv(2, HEADS, 150)], make()
    kept = [x.clone() for x in qkv]
    for rope, denominator in SETTINGS:
        options = dict(feature_map=feature_map, rope=rope, denominator=denominator, positions=slow_positions(150))
        assert_form(qkv, "auto", causal=True, key_padding_mask=some_padding(2, 150), **options)
        with torch.no_grad():
            linear_attention(*qkv, causal=True, **options)
    assert_identical(qkv, kept)


@pytest.mark.parametrize("denominator", ["unrotated", "none"])
def test_shifting_all_positions_changes_nothing(denominator: str, feature_map: FeatureMap) -> None:
    """Rotation after the map sees distances only. (Before a map it does so in the expectation over draws only.)"""
    qkv = [x.float() for x in random_qkv(1, HEADS, 100)]
    options = dict(feature_map=feature_map, denominator=denominator, causal=True)
    expected = linear_attention(*qkv, **options)
    for shift in (1, 1000, 100_000):
        actual = linear_attention(*qkv, positions=torch.arange(100) + shift, **options)
        assert_near(actual, expected, 1e-5)


def test_eq_19_weights_are_signed_and_their_rows_do_not_sum_to_one() -> None:
    """A property of the published equation that must not be hidden by clamping or normalising."""
    q, k, _ = random_qkv(1, 1, 200)
    identity = torch.eye(200, dtype=torch.float64).expand(1, 1, -1, -1)
    feature_map = FavorPlus(D, M)
    weights = linear_attention(q, k, identity, feature_map=feature_map, causal=True)
    assert (weights < -1e-3).any()
    assert (weights.sum(-1) - 1).abs().max() > 0.1
    rotated = linear_attention(q, k, identity, feature_map=feature_map, causal=True, denominator="rotated")
    torch.testing.assert_close(rotated.sum(-1), torch.ones(1, 1, 200, dtype=torch.float64))
    unrotated = linear_attention(q, k, identity, feature_map=feature_map, causal=True, rope="none")
    assert (unrotated >= 0).all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "feature_map", [FavorPlus(D, M, seed=1).double(), Hedgehog(D).double()], ids=["favor+", "hedgehog"]
)
def test_gradients_are_equal_where_exponents_are_cut_off(feature_map: FeatureMap, causal: bool) -> None:
    qkv = [x * scale for x, scale in zip(random_qkv(1, HEADS, 9), (60, 60, 1), strict=True)]
    options = {"feature_map": feature_map, "denominator": "none", "causal": causal}
    expected = outputs_and_gradients(qkv, implementation="reference", **options)
    # e^60, times what is summed, whatever the exponents are.
    assert all(x.abs().max() < 1e30 for x in expected)
    for implementation in ("chunked", "recurrent", "auto"):
        assert_near(outputs_and_gradients(qkv, implementation=implementation, **options), expected, 1e-9)
