"""A query that is padding has an output and weights of zero, in every kernel, form of a call and diagnostic."""

from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import LinearRoPEAttention, SoftmaxRoPEAttention
from linear_rope.attention import GatedDelta, Retention, RoPEAttention, WindowedFavor
from linear_rope.diagnostics.attention_weights import attention_matrices
from linear_rope.features import FEATURE_MAPS
from linear_rope.positions import POSITIONS
from linear_rope.positions.scores import ScorePositions
from tests.linear_rope.tensors import assert_identical, assert_near, random

DIM, HEADS, LENGTH = 8, 2, 20
SCORES = [name for name, each in POSITIONS.items() if isinstance(each, type) and issubclass(each, ScorePositions)]
EITHER_WAY: dict[str, tuple[type[RoPEAttention], dict[str, Any]]] = {
    **{name: (LinearRoPEAttention, {"feature_map": name}) for name in FEATURE_MAPS},
    "linear, decay": (LinearRoPEAttention, {"decay": "gate", "local_conv": 3, "short_conv": 3}),
    "softmax": (SoftmaxRoPEAttention, {}),
    "softmax, alibi": (SoftmaxRoPEAttention, {"rope": "none", "alibi": True}),
    "softmax, decay": (SoftmaxRoPEAttention, {"decay": "gate", "local_conv": 3, "short_conv": 3}),
    **{f"softmax, {name}": (SoftmaxRoPEAttention, {"rope": "none", "score_positions": name}) for name in SCORES},
    "retention": (Retention, {}),
}
CAUSAL: dict[str, tuple[type[RoPEAttention], dict[str, Any]]] = EITHER_WAY | {
    "softmax, xpos": (SoftmaxRoPEAttention, {"rope": "xpos"}),
    "delta": (GatedDelta, {}),
    "favor+window": (WindowedFavor, {"window": 3, "num_features": 6}),
    "favor+window, decay": (WindowedFavor, {"window": 3, "num_features": 6, "decay": "gate", "local_conv": 3}),
}
CASES = [(name, True) for name in CAUSAL] + [(name, False) for name in EITHER_WAY]


def made(name: str, causal: bool) -> RoPEAttention:
    torch.manual_seed(0)
    kernel, options = CAUSAL[name]
    module: RoPEAttention = kernel(DIM, HEADS, causal=causal, **options).double()  # type: ignore[call-arg, arg-type]
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(random(*parameter.shape, seed=seed) / 2)
    return module


def some_padding() -> tuple[Tensor, Tensor]:
    """Tokens and their masks: padding on the left, on the right, in scattered places, and none."""
    place = torch.arange(LENGTH)
    mask = torch.stack((place < 7, place > 14, place % 3 == 1, place < 0))
    return random(4, LENGTH, DIM).masked_fill(mask.unsqueeze(-1), 20), mask


@pytest.mark.parametrize(("name", "causal"), CASES)
def test_outputs_are_zero_at_padding(name: str, causal: bool) -> None:
    module, (x, mask) = made(name, causal), some_padding()
    y = module(x, key_padding_mask=mask)
    assert not y[mask].any()
    assert y[~mask].all()
    if causal:
        assert_near(module.prefill(x, mask)[0], y)


@pytest.mark.parametrize(("name", "causal"), CASES)
def test_weights_are_those_of_the_output(name: str, causal: bool) -> None:
    module, (x, mask) = made(name, causal), some_padding()
    weights = module.attention_weights(x, mask)
    assert weights.shape == (4, HEADS, LENGTH, LENGTH)
    assert not weights.transpose(1, 2)[mask].any()
    assert not weights.permute(0, 3, 1, 2)[mask].any()
    assert not (causal and weights.triu(1).any())
    projected = module.project(x, x, mask)
    y = weights @ projected.v
    if isinstance(module, SoftmaxRoPEAttention) and module.score_positions is not None:
        at = ((~mask).cumsum(-1) - 1).clamp(min=0).unsqueeze(1)
        added = module.score_positions.values(weights, at, at)
        y = y if added is None else y + added
    assert_near(module._merge(y, projected), module(x, key_padding_mask=mask))
    if isinstance(module, LinearRoPEAttention | SoftmaxRoPEAttention):
        matrices = attention_matrices(module, x, mask, None, None)
        assert_near(matrices.weights, weights)
        assert not any(each.transpose(1, 2)[mask].any() for each in matrices[:3])


@pytest.mark.parametrize("kernel", [LinearRoPEAttention, SoftmaxRoPEAttention])
def test_the_padding_of_a_context_hides_no_query(kernel: type[RoPEAttention]) -> None:
    module, (x, mask) = kernel(DIM, HEADS, rope="none").double(), some_padding()  # type: ignore[call-arg, arg-type]
    y = module(x, context=x.clone(), key_padding_mask=mask)
    assert y.all()
    assert_identical(module(x, context=x, key_padding_mask=mask), y)
