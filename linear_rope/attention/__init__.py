"""Attention modules: projections into heads, a kernel, positions, and decoding token by token."""

from linear_rope.attention.linear import LinearAttentionState, LinearRoPEAttention
from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.attention.registry import ATTENTIONS, make_attention
from linear_rope.attention.softmax import KeyValueCache, SoftmaxRoPEAttention

__all__ = [
    "ATTENTIONS",
    "KeyValueCache",
    "LinearAttentionState",
    "LinearRoPEAttention",
    "RoPEAttention",
    "SoftmaxRoPEAttention",
    "make_attention",
]
