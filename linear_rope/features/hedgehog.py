"""A map that is trained with the model (Hedgehog: Zhang et al. 2024, arXiv 2402.04347)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope.features.base import FeatureMap, Features
from linear_rope.small_calls import exponential_of_negative


class Hedgehog(FeatureMap):
    """φ(x) = [exp(u), exp(−u)] with u = x + W·x; M = 2·D.

    W is zero when it is made; :func:`linear_rope.blocks.initialise` draws it as it draws every matrix. The paper gives
    every head its own W and trains it first to imitate softmax attention; here the heads of a layer share it, and it is
    trained with the rest.

    Args:
        head_dim: D.
        eps: added to each feature relative to the largest of its vector, so that no denominator vanishes.
    """

    def __init__(self, head_dim: int, *, eps: float = 1e-6) -> None:
        super().__init__(head_dim, 2 * head_dim)
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(head_dim, head_dim))

    def features(self, x: Tensor) -> Features:
        projected = x + F.linear(x, self.weight.to(x.dtype))
        exponents = torch.cat((projected, -projected), dim=-1)
        largest = exponents.amax(-1, keepdim=True)
        return Features(exponential_of_negative(exponents - largest) + self.eps, largest)
