"""Linear attention as a function: one definition, several implementations that agree with it."""

from linear_rope.functional.linear_attention import IMPLEMENTATIONS, linear_attention
from linear_rope.functional.native import kernels

__all__ = ["IMPLEMENTATIONS", "kernels", "linear_attention"]
