"""The exponential of a score up to its second power (Based: Arora et al. 2024, arXiv 2402.18668)."""

import math

import torch
from torch import Tensor

from linear_rope.features.base import FeatureMap, Features


class Taylor(FeatureMap):
    """φ with φ(q)ᵀφ(k) = 1 + s + s²/2, where s = qᵀk / √D; positive, though not each feature is.

    M = 1 + D + D·(D + 1)/2, and one feature more that is 0 where that is odd. The paper maps 16 channels a head.

    Args:
        head_dim: D.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim, self.count(head_dim))

    def count(self, head_dim: int) -> int:
        features = 1 + head_dim + head_dim * (head_dim + 1) // 2
        return features + features % 2

    def features(self, x: Tensor) -> Features:
        x = x * x.shape[-1] ** -0.25
        width = x.shape[-1]
        first, second = torch.triu_indices(width, width, device=x.device)
        # Of s²/2 a pair of two channels has the weight 1, as it comes twice, and a square 1/2.
        weight = torch.where(first == second, x.new_tensor(math.sqrt(0.5)), x.new_ones(()))
        parts = [torch.ones_like(x[..., :1]), x, x[..., first] * x[..., second] * weight]
        if (1 + width + len(first)) % 2:
            parts.append(torch.zeros_like(x[..., :1]))
        values = torch.cat(parts, dim=-1)
        # At least 1. It cancels, so nothing is lost without its gradient.
        largest = values.detach().abs().amax(-1, keepdim=True)
        return Features(values / largest, largest.log())
