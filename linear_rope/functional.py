"""Linear attention as a function, where it was before :mod:`linear_rope.ops`."""

from linear_rope.ops.linear import IMPLEMENTATIONS, kernels, linear_attention

__all__ = ["IMPLEMENTATIONS", "kernels", "linear_attention"]
