"""Absolute position encodings that are added to the token embedding."""

import torch
from torch import Tensor, nn

from linear_rope.positions.rotary import rope_frequencies


class LearnedPositions(nn.Module):
    """A learned vector per position.

    Args:
        max_length: number of positions in the table.
        dim: model width.
    """

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_length, dim)

    def forward(self, positions: Tensor) -> Tensor:
        """(..., N) int64 → (..., N, dim).

        Raises:
            ValueError: more positions than the table has.
        """
        if positions.shape[-1] > self.table.num_embeddings:
            raise ValueError(
                f"the sequence has {positions.shape[-1]} positions, but the learned table ends at "
                f"{self.table.num_embeddings}; make the model with a larger max_length"
            )
        return self.table(positions)


class SinusoidalPositions(nn.Module):
    """A fixed sinusoid per position (Vaswani et al. 2017, arXiv 1706.03762, section 3.5).

    Args:
        dim: model width; even.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"dim is {dim}; sinusoidal positions need an even number")
        self.dim = dim

    def forward(self, positions: Tensor) -> Tensor:
        """(..., N) → (..., N, dim) float32."""
        frequencies = rope_frequencies(self.dim, device=positions.device)
        angles = positions.to(frequencies.dtype).unsqueeze(-1) * frequencies
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).float()
