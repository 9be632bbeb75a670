"""Linear attention as a function: one definition, several implementations that agree with it."""

from linear_rope.ops.linear.linear_attention import IMPLEMENTATIONS, kernels, linear_attention

__all__ = ["IMPLEMENTATIONS", "kernels", "linear_attention"]
