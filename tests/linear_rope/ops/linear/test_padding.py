"""Padding has no influence, whatever it holds; and values stay finite where exponentials would not."""

from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import FavorPlus, FeatureMap, ReluFeatures, linear_attention
from tests.linear_rope.tensors import HEADS, SETTINGS, assert_near, random_qkv

LENGTH = 67


def padding_masks() -> Tensor:
    """Sequences padded on the left, on the right, in scattered places, at both ends, and not at all."""
    place = torch.arange(LENGTH)
    scattered = torch.rand(LENGTH, generator=torch.Generator().manual_seed(0)) < 0.4
    rows = (place < 66, place >= 5, scattered, (place < 10) | (place > 40), place < 0)
    return torch.stack(rows)


def with_padding(qkv: list[Tensor], mask: Tensor, held: str) -> list[Tensor]:
    """Padding that is twenty times louder than tokens; or, in keys and values, not a number at all."""
    place = mask[:, None, :, None]
    loud = [torch.where(place, 20 * x, x) for x in qkv]
    if held == "loud":
        return loud
    return [loud[0], *(x.masked_fill(place, float(held)) for x in loud[1:])]


def alone(qkv: list[Tensor], mask: Tensor, positions: Tensor | None = None, **options: Any) -> list[Tensor]:
    """The reference's output for each sequence by itself, without its padding."""
    return [
        linear_attention(
            *(x[row : row + 1, :, keep] for x in qkv),
            positions=None if positions is None else positions[row, keep],
            implementation="reference",
            **options,
        )[0]
        for row, keep in enumerate(~mask)
    ]


@pytest.mark.parametrize("causal", [True, False])
def test_padded_sequences_equal_unpadded_ones(feature_map: FeatureMap, form: str, causal: bool) -> None:
    mask = padding_masks()
    place = mask[:, None, :, None]
    qkv = [x.requires_grad_() for x in random_qkv(len(mask), HEADS, LENGTH)]
    upstream = random_qkv(len(mask), HEADS, LENGTH, seed=1)[0].masked_fill(place, 0)
    # Slow positions keep a rotated denominator from cancelling.
    positions = ((~mask).cumsum(-1) - 1) / (10 * LENGTH)
    for rope, denominator in SETTINGS:
        options: dict[str, Any] = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=causal)
        expected = alone(qkv, mask, positions, **options)
        rows = [(y * upstream[row, :, keep]).sum() for row, (y, keep) in enumerate(zip(expected, ~mask, strict=True))]
        # With zeros at padding.
        wanted = torch.autograd.grad(sum(rows[1:], start=rows[0]), qkv)
        for held in ("loud", "inf", "nan"):
            padded = [x.detach().requires_grad_() for x in with_padding(qkv, mask, held)]
            y = linear_attention(*padded, **options, key_padding_mask=mask, positions=positions, implementation=form)
            assert_near([y[row, :, keep] for row, keep in enumerate(~mask)], expected)
            found = torch.autograd.grad(y, padded, upstream)
            assert_near(torch.stack(found), torch.stack(wanted))
            assert not any(gradient.masked_select(place).any() for gradient in found)


@pytest.mark.parametrize("causal", [True, False])
def test_padding_does_not_drown_keys_of_tiny_features(form: str, causal: bool) -> None:
    """FAVOR+ features of long vectors are far below the smallest number; only their stabiliser tells them from zero."""
    qkv, mask = [60 * x for x in random_qkv(5, HEADS, LENGTH)], padding_masks()
    options: dict[str, Any] = dict(feature_map=FavorPlus(4, 6), causal=causal)
    y = linear_attention(*with_padding(qkv, mask, "nan"), **options, key_padding_mask=mask, implementation=form)
    expected = alone(qkv, mask, **options)
    assert all(row.any() for row in expected)
    assert_near([y[row, :, keep] for row, keep in enumerate(~mask)], expected)


@pytest.mark.parametrize("held", ["loud", "nan"])
def test_a_query_that_sees_no_key_gives_zeros(feature_map: FeatureMap, form: str, held: str) -> None:
    mask = torch.zeros(2, LENGTH, dtype=torch.bool)
    mask[0] = True
    mask[1, :66] = True
    for rope, denominator in SETTINGS:
        for causal in (True, False):
            qkv = [x.float().requires_grad_() for x in with_padding(random_qkv(2, HEADS, LENGTH), mask, held)]
            options = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=causal)
            output = linear_attention(*qkv, **options, key_padding_mask=mask, implementation=form)
            assert output.isfinite().all()
            assert not output[0].any()
            assert output[1, :, 66:].any()
            assert bool(output[1, :, :66].any()) == (not causal)
            for gradient in torch.autograd.grad(output.square().sum() + output.sum(), qkv):
                assert gradient.isfinite().all()
                assert not gradient[0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_up_to_ten_thousand_stay_finite(feature_map: FeatureMap, dtype: torch.dtype, form: str) -> None:
    """Norms grow and shrink along the sequence, so that a stabiliser must go both ways."""
    generator = torch.Generator().manual_seed(0)
    norms = torch.logspace(-4, 4, LENGTH)[torch.randperm(LENGTH, generator=generator)]
    q, k, v = (x.float() for x in random_qkv(3, HEADS, LENGTH))
    q, k = (x / x.norm(dim=-1, keepdim=True) * norms[:, None] for x in (q, k))
    mask = torch.zeros(3, LENGTH, dtype=torch.bool)
    mask[0], mask[1, ::3] = True, True
    for rope, denominator in SETTINGS:
        for causal in (True, False):
            qkv = [x.to(dtype).requires_grad_() for x in (q, k, v)]
            options = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=causal)
            output = linear_attention(*qkv, **options, key_padding_mask=mask, implementation=form)
            gradients = torch.autograd.grad(output.float().sum(), qkv)
            assert all(x.isfinite().all() for x in (output, *gradients)), (rope, denominator, causal)


def test_tokens_after_a_loud_key_follow_the_formula(feature_map: FeatureMap, form: str) -> None:
    """A stabiliser that is a running maximum stays large after one loud key; what follows must survive that."""
    q, k, v = random_qkv(1, HEADS, LENGTH)
    k[:, :, 3] *= 12
    weights = (feature_map(q) @ feature_map(k).mT).tril()
    expected = weights @ v / weights.sum(-1, keepdim=True)
    actual = linear_attention(q, k, v, feature_map=feature_map, causal=True, rope="none", implementation=form)
    assert_near(actual, expected)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rope", ["after", "before", "none"])
def test_relu_of_queries_and_keys_that_are_orthogonal_is_as_large_as_promised(
    form: str, rope: str, causal: bool
) -> None:
    """Values and features are at most 1, and the denominator is of the size of ε."""
    feature_map, v = ReluFeatures(), torch.ones(1, 1, LENGTH, 4)
    q = torch.tensor([1.0, 0, 1, 0]).expand(1, 1, LENGTH, 4)
    qkv = [x.clone().requires_grad_() for x in (q, 1 - q, v)]
    output = linear_attention(*qkv, feature_map=feature_map, rope=rope, causal=causal, implementation=form)
    gradients = torch.autograd.grad(output.sum(), qkv)
    assert all(x.isfinite().all() for x in (output, *gradients))
    largest = feature_map(q).norm(dim=-1).max() / feature_map.eps if rope == "after" else 1
    assert output.abs().max() <= largest * 1.0001
    assert output.abs().max() > (1e4 if rope == "after" else 0.9)


def test_sums_without_a_denominator_stay_finite(form: str) -> None:
    """Along a row ω of its draw φ(x) reaches exp(|ω|²/2): for D = 512 its square is beyond float32."""
    feature_map = FavorPlus(512, 2)
    x = (feature_map.omega[:1] * 512**0.25).expand(1, 1, 5, 512)
    assert not feature_map(x).square().isfinite().any()
    for causal in (True, False):
        qkv = [y.clone().requires_grad_() for y in (x, x, random_qkv(1, 1, 5)[2].float())]
        output = linear_attention(*qkv, feature_map=feature_map, denominator="none", causal=causal, implementation=form)
        gradients = torch.autograd.grad(output.sum(), qkv)
        assert all(y.isfinite().all() for y in (output, *gradients))
