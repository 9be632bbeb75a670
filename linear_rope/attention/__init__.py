"""Attention modules: projections into heads, a kernel, positions, and decoding token by token."""

from linear_rope.attention.delta import DeltaState, GatedDelta
from linear_rope.attention.linear import LinearAttentionState, LinearRoPEAttention
from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.attention.registry import ATTENTIONS, make_attention
from linear_rope.attention.retention import Retention
from linear_rope.attention.softmax import KeyValueCache, SoftmaxRoPEAttention
from linear_rope.attention.windowed import WindowedFavor, WindowState

__all__ = [
    "ATTENTIONS",
    "DeltaState",
    "GatedDelta",
    "KeyValueCache",
    "LinearAttentionState",
    "LinearRoPEAttention",
    "Retention",
    "RoPEAttention",
    "SoftmaxRoPEAttention",
    "WindowState",
    "WindowedFavor",
    "make_attention",
]
