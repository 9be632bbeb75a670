"""Calls with few numbers, as in a step of decoding, that keep to their thread.

Cosines and exponentials of a hundred numbers wake PyTorch's team of threads. On a busy machine the call then waits
milliseconds for a core, in every layer and for every token.
"""

import torch
from torch import Tensor

from linear_rope.tracing import has_tangent, is_watched

FEW = 2**14
"""numbers, at most, that one thread computes in less time than a second one takes to wake up"""


def are_few(x: Tensor) -> bool:
    """Whether ``x`` holds few numbers, and nobody differentiates or follows what is made of them."""
    is_free = not x.requires_grad and not is_watched() and not has_tangent(x)
    return is_free and x.device.type == "cpu" and x.numel() <= FEW and x.dtype in (torch.float32, torch.float64)


def cosine_and_sine(angles: Tensor) -> Tensor:
    """(...) → (..., 2)."""
    if are_few(angles):
        return torch.view_as_real(torch.polar(torch.ones_like(angles), angles))
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def exponential_of_negative(x: Tensor) -> Tensor:
    """e^x, for x ≤ 0."""
    if are_few(x):
        share = x.sigmoid()  # of e^x in 1 + e^x
        return share / (1 - share)
    return x.exp()
