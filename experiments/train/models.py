"""From a variant and a configuration to a model."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from inspect import signature
from typing import Any, Literal, Self

import torch
from torch import nn

from experiments.config import OF_ATTENTION, Config
from experiments.variants import OF_ROPE, PEER, Variant, get_variant, says_nothing
from linear_rope.attention.registry import ATTENTIONS
from linear_rope.blocks import Block, MakeAttention, attention_of_layer
from linear_rope.features.registry import FEATURE_MAPS
from linear_rope.heads import Classifier, MaskedLM
from linear_rope.interop.performer import PerformerPytorchAttention
from linear_rope.model import CausalLM, EncoderDecoder
from linear_rope.model_config import ADDITIONS, AttentionSettings, ModelConfig
from linear_rope.positions.tables import PositionTable

Kind = Literal["next", "masked", "labels", "translation"]
"""of a model: what it predicts"""


@dataclass(eq=False)
class Shape:
    """What a model is built from: an objective, or this alone where the data need not be at hand."""

    vocabulary: int
    """number of token ids that the model reads"""
    length: int
    """tokens of the longest sequence that the model reads"""
    kind: Kind = "next"
    outputs: int = 0
    """numbers that a model of labels gives for a sequence"""

    def model(self, config: ModelConfig, attention: MakeAttention | None) -> nn.Module:
        """The model to be trained; ``attention`` makes that of a layer where ``config`` does not know the kind."""
        if self.kind == "next":
            return CausalLM(config, attention)
        if attention is not None:
            lacking = "decoder" if self.kind == "translation" else "encoder"
            raise ValueError(
                f"the attention of another library (performer-pytorch) has no {lacking} here; leave it out"
            )
        if self.kind == "labels":
            return Classifier(config, self.outputs)
        return MaskedLM(config) if self.kind == "masked" else EncoderDecoder(config)

    def of(self, settings: Mapping[str, Any]) -> Self:
        """The same examples in the same batches for a variant with these settings, which may have another context.

        Raises ValueError where another context makes other examples.
        """
        found = copy.copy(self)
        found.length = settings.get("context", self.length)
        if found.length != self.length and self.kind != "labels":
            raise ValueError(
                f"--variants gives a context of {found.length}, but only labelled texts are the same batches at every "
                "length; leave the setting out, or give --data of labelled texts, such as imdb-sentiment"
            )
        return found


def build_model(variant: Variant, config: Config, seed: int, objective: Shape) -> nn.Module:
    """The model of one run. What two variants share starts with equal weights for equal seeds.

    A variant's kernel is one of linear_rope's attentions by name, or the feature map of its linear attention.

    Raises:
        ValueError: a setting that the variant cannot take; it names both.
    """
    try:
        return _model(variant, config, seed, objective)
    except ValueError as error:
        raise ValueError(f"--variants: {variant.name}: {error}") from None


def _model(variant: Variant, config: Config, seed: int, objective: Shape) -> nn.Module:
    attention = _peer_attention(config, seed) if variant.kernel == PEER else None
    model_config = ModelConfig(
        vocab_size=objective.vocabulary,
        dim=config.dim,
        layers=config.layers,
        max_length=objective.length,
        dropout=config.dropout,
        initial_std=config.matrix_std,
        seed=seed,
        feature_seed=seed,
        pattern=tuple(AttentionSettings(**settings) for settings in _layers(variant, config)),
        **({"heads": config.heads} if variant.pattern else _attention(variant, config)),
    )
    if attention is None:
        width = mlp_width(model_config, objective.kind, objective.outputs)
        if width is not None and width < 1:
            raise ValueError(
                f"it adds more parameters than a block's MLP has at dim {config.dim}, which gives them; leave a "
                "setting of it out, or give more --heads"
            )
        model_config = replace(model_config, mlp_width=width)
    model = objective.model(model_config, attention)
    return model.double() if config.precision == "float64" else model


def _attention(variant: Variant, config: Config) -> dict[str, Any]:
    """What a model's configuration says of its attention."""
    is_map = variant.kernel in FEATURE_MAPS
    is_peer = variant.kernel == PEER
    known: Mapping[str, Any] = FEATURE_MAPS if is_map else ATTENTIONS
    taken = {} if is_peer else signature(known[variant.kernel]).parameters
    settings = config.of_attention.items()
    return {
        **{name: x for name, x in settings if name not in OF_ROPE or not says_nothing(name, variant)},
        "heads": config.heads,
        "attention": "linear" if is_map or is_peer else variant.kernel,
        **({"feature_map": variant.kernel} if is_map else {}),
        "num_features": config.num_features if "num_features" in taken else None,
        "position": variant.position,
        **({"denominator": config.denominator} if is_map or "denominator" in taken else {}),
        "redraw_every": config.redraw_every or None if "redraw_every" in taken else None,
    }


def _layers(variant: Variant, config: Config) -> Iterator[dict[str, Any]]:
    """The same of each layer of a hybrid's pattern, whose own settings are in the names of its layers."""
    for layer in map(get_variant, variant.pattern):
        yield _attention(layer, layer.config(config))


@cache
def mlp_width(config: ModelConfig, kind: Kind, outputs: int) -> int | None:
    """An MLP that gives and takes what settings change by over 1 % of a block's parameters, in the mean over blocks.

    They are compared with those of softmax attention without settings and positions. The tables of positions are not
    counted: they are what such a variant is compared for.
    """
    plain = replace(config.without(*ADDITIONS), attention="softmax", denominator="unrotated", pattern=())
    shape = Shape(config.vocab_size, config.max_length, kind, outputs)
    with torch.device("meta"):
        model, without = shape.model(config, None), shape.model(plain, None)
        block = _size(Block(plain, attention_of_layer(plain, 0, causal=True)))
    added = (_size(model) - _size(without)) // sum(isinstance(each, Block) for each in model.modules())
    return config.mlp_ratio * config.dim - round(added / (2 * config.dim + 1)) if abs(added) > 0.01 * block else None


def _size(module: nn.Module) -> int:
    """Number of trainable parameters without those of position tables."""
    total, tables = count_parameters(module)
    return total - tables


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Numbers of trainable parameters: all, and those of learned position tables."""
    tables = [module for module in model.modules() if isinstance(module, PositionTable)]
    return sum(p.numel() for p in model.parameters()), sum(p.numel() for table in tables for p in table.parameters())


def check_parameters_match(parameters: dict[str, tuple[int, int]]) -> None:
    """Raises ValueError unless the parameters of variants of one size, without position tables, are equal within 1 %.

    The table of learned positions is what such a variant adds and is compared for; it is reported beside the others.
    """
    without_tables = {name: total - table for name, (total, table) in parameters.items()}
    if max(without_tables.values()) > 1.01 * min(without_tables.values()):
        raise ValueError(
            f"the variants differ by more than 1 % in parameters, so they are not compared: {without_tables}"
        )


def _peer_attention(config: Config, seed: int) -> MakeAttention:
    lacking = dict.fromkeys((*OF_ATTENTION, "dropout"), "has none")
    lacking |= {"redraw_every": "never redraws its features", "packing": "tells no documents apart"}
    for name, lack in lacking.items():
        value, without = getattr(config, name), getattr(Config, name)
        if value != without:
            remedy = f"leave out the variant, or give --{name.replace('_', '-')} {without}"
            raise ValueError(f"{name} is {value}, but the {PEER} variant {lack}; {remedy}")
    features, length = config.num_features, config.context
    return lambda layer: PerformerPytorchAttention(
        config.dim, config.heads, num_features=features, max_length=length, seed=seed * 1000 + layer
    )


def resolve_device(name: str) -> torch.device:
    """The device of "auto", "cpu" or "cuda". Raises ValueError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is cuda, but PyTorch finds no CUDA device; give --device cpu")
    return torch.device(name)
