"""Causal linear attention: nothing that comes later has any influence, in any form."""

import pytest
import torch

from linear_rope import FeatureMap, linear_attention
from tests.linear_rope.tensors import HEADS, SETTINGS, assert_near, random_qkv

LENGTH = 90
# At, before and after the ends of chunks.
LAST_KEPT = (0, 63, 75)


@pytest.mark.parametrize(("loudness", "changed_to"), [(1, 100), (100, 0.01)])
def test_the_future_changes_nothing(feature_map: FeatureMap, loudness: float, changed_to: float, form: str) -> None:
    """Also not where all keys of the past are far smaller in φ than one of the future, as loud keys are in FAVOR+."""
    qkv = [loudness * x.float() for x in random_qkv(1, HEADS, LENGTH)]
    other = [changed_to * x.float() for x in random_qkv(1, HEADS, LENGTH, seed=1)]
    for rope, denominator in SETTINGS:
        options = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=True, implementation=form)
        whole = linear_attention(*qkv, **options)
        for last in LAST_KEPT:
            end = last + 1
            changed = [torch.cat((x[:, :, :end], y[:, :, end:]), dim=2) for x, y in zip(qkv, other, strict=True)]
            expected = whole[:, :, :end]
            assert expected.any() or denominator == "none"
            # A matrix product may add the same numbers in another order; the recurrence may not.
            tolerance = 0 if form == "recurrent" else 1e-6
            assert_near(linear_attention(*changed, **options)[:, :, :end], expected, tolerance)


def test_no_gradient_reaches_the_future(feature_map: FeatureMap, form: str) -> None:
    for rope, denominator in SETTINGS:
        qkv = [x.requires_grad_() for x in random_qkv(1, HEADS, LENGTH)]
        options = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=True, implementation=form)
        output = linear_attention(*qkv, **options)
        for last in (5, 64):
            past = output[:, :, : last + 1].square().sum()
            for gradient in torch.autograd.grad(past, qkv, retain_graph=True):
                assert not gradient[:, :, last + 1 :].any()
                assert gradient[:, :, : last + 1].any()
