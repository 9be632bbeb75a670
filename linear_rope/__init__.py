"""Linear attention with rotary positions after the feature map (RoFormer, eq. 19), and what to compare it with."""

from linear_rope import distributed
from linear_rope.attention import LinearRoPEAttention, SoftmaxRoPEAttention
from linear_rope.features import EluPlusOne, FavorPlus, FeatureMap, ReluFeatures
from linear_rope.model import CausalLM, Encoder, EncoderDecoder
from linear_rope.model_config import ModelConfig
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
