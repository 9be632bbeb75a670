"""Every feature twice, side by side, for maps that are rotated with themselves (the paired form of FAVOR+)."""

from torch import Tensor


def pairs(values: Tensor) -> Tensor:
    """(..., M / 2) → (..., M)."""
    return values.repeat_interleave(2, dim=-1)


def of_pairs(values: Tensor, grad_values: Tensor) -> tuple[Tensor, Tensor]:
    """The features that :func:`pairs` used twice, and their gradient: the sum of those of both members."""
    return values[..., ::2], grad_values[..., ::2] + grad_values[..., 1::2]
