"""What a variant carries from token to token and computes for each, by formula.

Axis names: H heads, D channels of a head, M features, N tokens of the context, W those of a window.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn

from experiments.config import Config
from experiments.train.models import Shape, build_model, count_parameters
from experiments.variants import Variant
from linear_rope.attention.delta import GatedDelta
from linear_rope.attention.linear import LinearRoPEAttention
from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.attention.softmax import SoftmaxRoPEAttention
from linear_rope.attention.windowed import WindowedFavor
from linear_rope.features.base import FeatureMap
from linear_rope.heads import Classifier


class Costs(NamedTuple):
    """Of a model; None where it is not known."""

    parameters: int
    """without tables of positions"""
    state: int | None
    """numbers that all layers carry from token to token, of a sequence of N tokens"""
    flops: int | None
    """additions and multiplications of a token's forward pass, the mean over N tokens"""


def costs(variant: Variant, config: Config, objective: Shape) -> Costs:
    """Of the model that a variant is trained as."""
    with torch.device("meta"):
        return costs_of(build_model(variant, config, 0, objective), config.context)


def costs_of(model: nn.Module, context: int) -> Costs:
    """The same of a model that is there. The encoder of another model carries nothing from token to token."""
    total, tables = count_parameters(model)
    attentions = {name: module for name, module in model.named_modules() if isinstance(module, RoPEAttention)}
    carrying = [each for name, each in attentions.items() if each.causal or name.endswith("cross_attention")]
    # Each weight of a matrix is used once a token; the embedding is the output projection.
    matrices = sum(weights.numel() for weights in model.parameters() if weights.dim() > 1) - tables
    if isinstance(model, Classifier):  # which has no output projection
        matrices -= model.encoder.embedding.tokens.weight.numel()
    state = _sum(state_numbers(each, context) for each in carrying)
    own = _sum(attention_flops(each, context) for each in attentions.values())
    return Costs(total - tables, state, None if own is None else 2 * matrices + own)


def _sum(numbers: Iterable[int | None]) -> int | None:
    """None if one is not known, or there are none."""
    found = [*numbers]
    return None if None in found or not found else sum(filter(None, found))


def state_numbers(attention: RoPEAttention, context: int) -> int | None:
    """Numbers that an attention carries of a sequence: memory and denominator, or keys and values; and convolutions'.

    With H heads of keys and values, softmax attention 2·N·H·D, with PoPE 3·N·H·D, over a window with W for N; linear
    attention H·M·(D + 1), H·M·D without a denominator, the delta rule H·D², a window and linear attention 2·W·H·D +
    H·M·(D + 1). A convolution of w tokens adds w − 1 values (queries, keys and values). The few that do not grow with D
    are left out: stabiliser, position, phase.
    """
    heads, width = attention.kv_heads, attention.kv_heads * attention.head_dim
    carried = sum(
        (convolution.width - 1) * convolution.weight.shape[0]
        for convolution in (attention.local, attention.short)
        if convolution is not None
    )
    if isinstance(attention, SoftmaxRoPEAttention):
        of_key = 2 if attention.rope == "pope" else 1
        return carried + (of_key + 1) * min(context, attention.window or context) * width
    if isinstance(attention, GatedDelta):
        return carried + width * attention.head_dim
    if isinstance(attention, LinearRoPEAttention):
        features = attention.feature_map.count(attention.head_dim)
        return carried + heads * features * (attention.head_dim + (attention.denominator != "none"))
    if isinstance(attention, WindowedFavor):
        features = attention.feature_map.count(attention.head_dim)
        return carried + 2 * attention.window * width + heads * features * (attention.head_dim + 1)
    return None


def attention_flops(attention: RoPEAttention, context: int) -> int | None:
    """Additions and multiplications of a layer's attention for a token, besides projections and elementwise functions.

    Softmax attention 4·H·D, with PoPE 6·H·D, for each key that is seen, (N + 1)/2 of a past in the mean. The recurrence
    of linear attention adds a key and reads the state, 4·H·M·(D + 1), or 4·H·M·D without a denominator; the delta rule
    reads it once more, 6·H·D²; a decay multiplies it once; random features are 2·D a feature of a query and of a key.
    All but the queries' part is of the heads of keys and values.
    """
    heads, of_keys, width = attention.heads, attention.kv_heads, attention.heads * attention.head_dim
    if isinstance(attention, SoftmaxRoPEAttention):
        return round((6 if attention.rope == "pope" else 4) * width * _keys(attention, context))
    fading = 0 if attention.decay is None else 1
    if isinstance(attention, GatedDelta):
        return (2 * heads + (4 + fading) * of_keys) * attention.head_dim**2
    if isinstance(attention, LinearRoPEAttention):
        columns = attention.head_dim + (attention.denominator != "none")
        near = 0
    elif isinstance(attention, WindowedFavor):
        columns, near = attention.head_dim + 1, 4 * width * attention.window
    else:
        return None
    features = attention.feature_map.count(attention.head_dim)
    mapped = _mapping(attention.feature_map, (heads + of_keys) * attention.head_dim)
    return near + mapped + (2 * heads + (2 + fading) * of_keys) * features * columns


def _keys(attention: SoftmaxRoPEAttention, context: int) -> float:
    """How many keys a query sees, in the mean."""
    most = min(context, attention.window or context)
    return most - most * (most - 1) / 2 / context if attention.causal else context


def _mapping(feature_map: nn.Module, width: int) -> int:
    assert isinstance(feature_map, FeatureMap)
    call = feature_map.formula()
    return 0 if call is None or call.constant is None else 2 * width * call.constant.shape[0]
