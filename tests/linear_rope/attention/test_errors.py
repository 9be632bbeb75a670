"""What the attention modules refuse: the message names the argument, what came, and what would do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from linear_rope import EluPlusOne, LinearRoPEAttention, SoftmaxRoPEAttention

DIM, HEADS = 16, 2


def linear(dim: int = DIM, heads: int = HEADS, **options: Any) -> LinearRoPEAttention:
    return LinearRoPEAttention(dim, heads, **options)


def softmax(dim: int = DIM, heads: int = HEADS, **options: Any) -> SoftmaxRoPEAttention:
    return SoftmaxRoPEAttention(dim, heads, **options)


@pytest.mark.parametrize(
    ("make_module", "options", "words"),
    [
        (linear, {"num_features": 7}, ["num_features", "7", "even", "8"]),
        (linear, {"num_features": 0}, ["num_features", "0", "1 or more"]),
        (linear, {"feature_map": "elu+1", "num_features": 6}, ["num_features", "6", "8", "leave it out"]),
        (linear, {"feature_map": "elu+1", "redraw_every": 5}, ["redraw_every", "5", "leave it out"]),
        (linear, {"feature_map": "elu+1+paired", "num_features": 8}, ["num_features", "8", "16", "leave it out"]),
        (linear, {"feature_map": "favor+hyperbolic", "num_features": 7}, ["num_features", "7", "even"]),
        (linear, {"feature_map": "favor+paired", "num_features": 7}, ["num_features", "7", "paired", "even"]),
        (linear, {"feature_map": "cosine"}, ["feature_map", "'cosine'", "favor+", "elu+1", "relu"]),
        (linear, {"feature_map": EluPlusOne(), "num_features": 8}, ["num_features", "FeatureMap"]),
        (linear, {"rope": "both"}, ["rope", "'both'", "'after'", "'before'", "'none'"]),
        (linear, {"denominator": "sum"}, ["denominator", "'sum'", "'unrotated'", "'rotated'", "'none'"]),
        (linear, {"redraw_every": 0}, ["redraw_every", "0", "None"]),
        (linear, {"rope": "before", "head_dim": 5}, ["head_dim", "5", "even"]),
        (softmax, {"head_dim": 5}, ["head_dim", "5", "even"]),
        (softmax, {"alibi": True}, ["rope", "'before'", "alibi", 'rope="none"']),
        (softmax, {"rope": "after"}, ["rope", "'after'", "'before'", "'none'"]),
        *(
            (kind, options, words)
            for kind in (linear, softmax)
            for options, words in (
                ({"heads": 3}, ["dim", "16", "heads", "3", "head_dim"]),
                ({"heads": 0}, ["heads", "0", "1 or more"]),
                ({"dim": 0}, ["dim", "0", "1 or more"]),
                ({"head_dim": 0}, ["head_dim", "0", "1 or more"]),
                ({"dropout": 1.0}, ["dropout", "1.0", "less than 1"]),
            )
        ),
    ],
)
def test_wrong_arguments(make_module: Callable[..., nn.Module], options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"give|choose|change|leave|set") as error:
        make_module(**options)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("make_module", [linear, softmax])
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m, x: m(x[0]), ["x", "(5, 16)", "(batch, length, 16)"]),
        (lambda m, x: m(x[..., :8]), ["x", "(2, 5, 8)", "(batch, length, 16)"]),
        (lambda m, x: m(x[:, :0]), ["x", "(2, 0, 16)", "1 or more"]),
        (lambda m, x: m(x, x), ["context", "causal=False"]),
        (lambda m, x: m(x, key_padding_mask=torch.zeros(2, 5)), ["key_padding_mask", "torch.float32", "torch.bool"]),
        (lambda m, x: m(x, key_padding_mask=torch.zeros(5, 2).bool()), ["key_padding_mask", "(5, 2)", "(2, 5)"]),
        (lambda m, x: m.attention_weights(x, torch.zeros(2, 5)), ["key_padding_mask", "torch.float32", "torch.bool"]),
        (lambda m, x: m.prefill(x, torch.zeros(2, 4).bool()), ["key_padding_mask", "(2, 4)", "(2, 5)"]),
        (lambda m, x: m(x, positions=torch.arange(4)), ["positions", "(4,)", "(5,)", "(2, 5)"]),
        (lambda m, x: m.step(x, m.prefill(x)[1]), ["x", "(2, 5, 16)", "(2, 1, 16)"]),
        (lambda m, x: m.step(x[:1, :1], m.prefill(x)[1]), ["x", "(1, 1, 16)", "(2, 1, 16)"]),
    ],
)
def test_wrong_calls(make_module: Callable[..., nn.Module], call: Callable[..., Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"give|make") as error:
        call(make_module(causal=True), torch.zeros(2, 5, DIM))
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("make_module", [linear, softmax])
def test_wrong_use_of_a_bidirectional_module(make_module: Callable[..., Any]) -> None:
    module, x = make_module(), torch.zeros(2, 5, DIM)
    with pytest.raises(ValueError, match=r"prefill needs a causal attention; make it with causal=True"):
        module.prefill(x)
    with pytest.raises(ValueError, match=r"context has shape \(2, 5, 8\); give \(batch, length, 16\)"):
        module(x, F.pad(x, (0, -8)))
    with pytest.raises(ValueError, match=r"key_padding_mask .*\(2, 5\); give torch.bool and \(2, 3\)"):
        module(x, x[:, :3], key_padding_mask=torch.zeros(2, 5).bool())
