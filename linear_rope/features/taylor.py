"""The exponential of a score up to its second power (Based: Arora et al. 2024, arXiv 2402.18668)."""

import math

import torch
from torch import Tensor

from linear_rope.features.base import FeatureMap, Features
from linear_rope.tracing import is_watched

LONGEST = 400.0
"""of |x| / D^¼: 1 + s + s²/2 is at least 1/2, and a sum of products that are up to LONGEST⁴/2 is known to 3e-6 of it"""


class Taylor(FeatureMap):
    """φ with φ(q)ᵀφ(k) = 1 + s + s²/2, where s = qᵀk / √D; positive, though not each feature is.

    M = 1 + D + D·(D + 1)/2, and one feature more that is 0 where that is odd. The paper maps 16 channels a head.

    Of long vectors that are nearly orthogonal the products cancel: features are float64, and |x| may be up to 400·D^¼,
    as 800 for D = 16. What is longer is refused on a CPU; elsewhere, and where somebody follows the call, as a
    compiler does, nobody waits for the numbers, and the features of such a vector are NaN.

    Args:
        head_dim: D.

    Raises:
        ValueError: when called, for a vector that is too long, or on a device without float64.
    """

    of_scores = True
    precision = torch.float64

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim, self.count(head_dim))

    def count(self, head_dim: int) -> int:
        features = 1 + head_dim + head_dim * (head_dim + 1) // 2
        return features + features % 2

    def features(self, x: Tensor) -> Features:
        width = x.shape[-1]
        x = x * width**-0.25
        too_long = x.square().sum(-1, keepdim=True) > LONGEST**2
        if x.device.type == "cpu" and not is_watched() and bool(too_long.any()):
            norm = float(x.detach().norm(dim=-1).max()) * width**0.25
            raise ValueError(
                f"Taylor is to map a vector of norm {norm:.4g}, whose products cancel; give vectors of norm "
                f"{LONGEST * width**0.25:.4g} or less (qk_norm=True makes them short), or choose favor+ or elu+1"
            )
        x = x.masked_fill(too_long, torch.nan)
        first, second = torch.triu_indices(width, width, device=x.device)
        # Of s²/2 a pair of two channels has the weight 1, as it comes twice, and a square 1/2.
        weight = 1 - (1 - math.sqrt(0.5)) * (first == second).to(x.dtype)
        parts = [torch.ones_like(x[..., :1]), x, x[..., first] * x[..., second] * weight]
        if (1 + width + len(first)) % 2:
            parts.append(torch.zeros_like(x[..., :1]))
        values = torch.cat(parts, dim=-1)
        # At least 1. It cancels, so nothing is lost without its gradient.
        largest = values.detach().abs().amax(-1, keepdim=True)
        return Features(values / largest, largest.log())
