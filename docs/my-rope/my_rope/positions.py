"""A position encoding: the nearer, the likelier."""

import torch
from torch import Tensor, nn

from linear_rope.positions import ScorePositions


class Nearer(ScorePositions):
    """A learned slope of each head times the distance is added to the scores."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__(head_dim, heads)
        self.slope = nn.Parameter(torch.zeros(heads, 1, 1))

    def forward(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """q (B, H, N, D), k (B, H, K, D), positions (N,) and (K,), or (B, 1, N) and (B, 1, K) → (B, H, N, K)."""
        distance = (q_positions.unsqueeze(-1) - k_positions.unsqueeze(-2)).abs()
        return self.slope.to(q.dtype) * distance
