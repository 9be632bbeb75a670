"""Linear attention with rotary positions after the feature map (RoFormer, eq. 19), and what to compare it with."""

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linear_rope import distributed
    from linear_rope.attention import LinearRoPEAttention, SoftmaxRoPEAttention
    from linear_rope.features import EluPlusOne, FavorPlus, FeatureMap, ReluFeatures
    from linear_rope.model import CausalLM, Encoder, EncoderDecoder
    from linear_rope.model_config import AttentionSettings, ModelConfig
    from linear_rope.ops.linear import kernels, linear_attention
    from linear_rope.positions import (
        Decay,
        FixedDecay,
        GatedDecay,
        NTKAware,
        PositionInterpolation,
        RopeScaling,
        SelectiveRotation,
        YaRN,
        apply_rope,
    )

__all__ = [
    "AttentionSettings",
    "CausalLM",
    "Decay",
    "EluPlusOne",
    "Encoder",
    "EncoderDecoder",
    "FavorPlus",
    "FeatureMap",
    "FixedDecay",
    "GatedDecay",
    "LinearRoPEAttention",
    "ModelConfig",
    "NTKAware",
    "PositionInterpolation",
    "ReluFeatures",
    "RopeScaling",
    "SelectiveRotation",
    "SoftmaxRoPEAttention",
    "YaRN",
    "apply_rope",
    "distributed",
    "kernels",
    "linear_attention",
]

__version__ = "0.1.0"

_PLACES = {
    **dict.fromkeys(("LinearRoPEAttention", "SoftmaxRoPEAttention"), "attention"),
    **dict.fromkeys(("EluPlusOne", "FavorPlus", "FeatureMap", "ReluFeatures"), "features"),
    **dict.fromkeys(("kernels", "linear_attention"), "ops.linear"),
    **dict.fromkeys(("CausalLM", "Encoder", "EncoderDecoder"), "model"),
    **dict.fromkeys(("AttentionSettings", "ModelConfig"), "model_config"),
}


def __getattr__(name: str) -> Any:
    """What is imported when it is asked for: :mod:`linear_rope.registry` alone needs no PyTorch."""
    place = _PLACES.get(name, "positions")
    if name in __all__ and name != "distributed":
        return getattr(import_module(f"linear_rope.{place}"), name)
    with suppress(ModuleNotFoundError):
        return import_module(f"linear_rope.{name}")
    raise AttributeError(f"module 'linear_rope' has no attribute {name!r}")
