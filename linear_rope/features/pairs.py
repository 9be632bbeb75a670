"""Every feature twice, side by side, for maps that are rotated with themselves (the paired form of FAVOR+)."""

from torch import Tensor

from linear_rope.features.base import Take


def unpaired(name: str) -> str:
    """The buffer of the features before they are used twice."""
    return f"{name}, unpaired"


def pairs(values: Tensor, name: str, take: Take) -> Tensor:
    """(..., M / 2) → (..., M), in the buffer ``name``."""
    paired = take(name, (*values.shape[:-1], 2 * values.shape[-1]), values)
    paired.unflatten(-1, (-1, 2)).copy_(values.unsqueeze(-1))
    return paired


def of_pairs(values: Tensor, grad_values: Tensor) -> tuple[Tensor, Tensor]:
    """The features that :func:`pairs` used twice, and their gradient: the sum of those of both members."""
    return values[..., ::2], grad_values[..., ::2] + grad_values[..., 1::2]
