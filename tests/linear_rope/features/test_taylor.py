"""Taylor features of long vectors: as the definition has them, in float64, or refused."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import LinearRoPEAttention, linear_attention
from linear_rope.features import Taylor
from linear_rope.features.taylor import LONGEST
from tests.linear_rope.tensors import FORMS, assert_near, assert_refused, in_steps, random

LENGTH = 70


def nearly_orthogonal(width: int, norm: float) -> list[Tensor]:
    """Queries and keys in float32 whose products are about 1, and values."""
    q, k, v = (random(1, 2, LENGTH, width, seed=seed) for seed in range(3))
    half = width // 2
    q[..., half:], k[..., :half] = 0, 0
    q, k = (norm * x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    q[..., half:] = random(1, 2, LENGTH, width - half, seed=3) * math.sqrt(width) / norm
    return [x.float() for x in (q, k, v)]


def definition(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    q, k, v = (x.double() for x in (q, k, v))
    score = q @ k.mT / math.sqrt(q.shape[-1])
    weights = 1 + score + score.square() / 2
    weights = weights.tril() if causal else weights
    return weights @ v / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("norm", [100.0, 300.0, "longest"])
@pytest.mark.parametrize("width", [4, 16])
def test_long_vectors_have_the_definition_s_outputs_and_gradients(width: int, norm: float | str) -> None:
    length = LONGEST * width**0.25 * (1 - 1e-3) if isinstance(norm, str) else norm
    qkv = [x.requires_grad_() for x in nearly_orthogonal(width, length)]
    upstream = random(1, 2, LENGTH, width, seed=9)
    for causal in (True, False):
        expected = definition(*qkv, causal=causal)
        wanted = torch.autograd.grad(expected, qkv, upstream)
        for form in FORMS:
            options: dict[str, Any] = dict(feature_map=Taylor(width), causal=causal, implementation=form, rope="none")
            y = linear_attention(*qkv, **options)
            assert y.dtype == torch.float32
            assert_near(y.double(), expected, 1e-5)
            assert_near(torch.autograd.grad(y, qkv, upstream.float()), wanted, 1e-5)


def test_the_product_of_long_features_is_the_definition() -> None:
    q, k, _ = nearly_orthogonal(16, 300.0)
    score = q.double() @ k.double().mT / 4
    assert_near(Taylor(16)(q) @ Taylor(16)(k).mT, 1 + score + score.square() / 2, 1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_longer_vectors_are_refused(causal: bool) -> None:
    for form in ("auto", *FORMS):
        for part in (0, 1):
            qkv = [torch.ones(1, 1, 3, 16) for _ in range(3)]
            qkv[part] = qkv[part] * LONGEST
            assert_refused(
                lambda qkv=qkv, form=form: linear_attention(
                    *qkv, feature_map=Taylor(16), causal=causal, implementation=form
                ),
                ["Taylor", "norm 1600", "norm 800", "qk_norm"],
            )
    # Not where padding is long, which has no influence.
    mask = torch.tensor([[False, False, True]])
    long = torch.ones(1, 1, 3, 16).masked_fill(mask[:, None, :, None], 1e6)
    options: dict[str, Any] = dict(feature_map=Taylor(16), rope="none", key_padding_mask=mask)
    assert_near(linear_attention(torch.ones_like(long), long, long, **options), torch.ones_like(long), 1e-6)


def test_what_is_too_long_is_no_number_where_nobody_waits_for_it() -> None:
    x = torch.ones(2, 3, 16)
    x[0, 1] = 1e3
    values = torch.func.vmap(Taylor(16))(x)
    assert values[0, 1].isnan().all()
    assert values[:, [0, 2]].isfinite().all()


def test_a_module_decodes_long_vectors() -> None:
    torch.manual_seed(0)
    module = LinearRoPEAttention(8, 2, feature_map="taylor", causal=True)
    x = 100 * random(2, 40, 8).float()
    with torch.no_grad():
        assert_near(in_steps(module, x, 20), module(x), 1e-5)
        assert_near(module(x).double(), module.double()(x.double()), 1e-5)
