"""Absolute position encodings that enter with the tokens, whatever the attention."""

import math

from torch import Tensor, nn

from linear_rope.positions.rotary import rope_frequencies
from linear_rope.positions.tables import PositionTable
from linear_rope.small_calls import cosine_and_sine
from linear_rope.tracing import is_watched


class EmbeddingPositions(nn.Module):
    """What positions do to the token embeddings; subclass it and define :meth:`embed` to add an encoding.

    A subclass is made with those of ``vocab_size``, ``dim``, ``max_length`` and ``initial_std`` that its ``__init__``
    names, as in :class:`linear_rope.ModelConfig`.
    """

    def embed(self, x: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """The embeddings with positions.

        Args:
            x: (B, N, dim), the embeddings of ``tokens``.
            tokens: (B, N) int64.
            positions: (N,) or (B, N) int64.

        Returns:
            (B, N, dim) of the dtype of ``x``.
        """
        raise NotImplementedError


class LearnedPositions(EmbeddingPositions):
    """A learned vector per position.

    Args:
        max_length: number of positions in the table.
        dim: model width.
    """

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        self.table = PositionTable(max_length, dim)

    def forward(self, positions: Tensor) -> Tensor:
        """(..., N) int64 → (..., N, dim). Raises ValueError for more positions than the table has."""
        number = positions.shape[-1]
        if positions.dim() > 1:
            # Of padded or packed rows fewer than there are places; where it costs nothing to look.
            looked_at = positions.device.type == "cpu" and positions.numel() and not is_watched()
            number = int(positions.max()) + 1 if looked_at else 0
        if number > self.table.num_embeddings:
            raise ValueError(
                f"the sequence has {number} positions, but the learned table ends at "
                f"{self.table.num_embeddings}; make the model with a larger max_length"
            )
        return self.table(positions)

    def embed(self, x: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        return x + self(positions)


class SinusoidalPositions(EmbeddingPositions):
    """A fixed sinusoid per position (Vaswani et al. 2017, arXiv 1706.03762, section 3.5).

    Args:
        dim: model width; even.
        initial_std: of the token embeddings that the sinusoid is added to, as large as they are.
    """

    def __init__(self, dim: int, initial_std: float = 0.02) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"dim is {dim}; sinusoidal positions need an even number")
        self.dim = dim
        self.initial_std = initial_std

    def forward(self, positions: Tensor) -> Tensor:
        """(..., N) → (..., N, dim) float32."""
        frequencies = rope_frequencies(self.dim, device=positions.device)
        angles = positions.to(frequencies.dtype).unsqueeze(-1) * frequencies
        return cosine_and_sine(angles).flip(-1).flatten(-2).float()

    def embed(self, x: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        # A sinusoid has a root mean square of 1/√2; at this scale neither it nor the tokens drown the other.
        return x + (self(positions) * (self.initial_std * math.sqrt(2))).to(x.dtype)
