"""Positions as a part of the scores of softmax attention: what all such encodings have in common.

Axis names: B batch, H heads, N queries, K keys, D head width, R rows of a table.
"""

from torch import Tensor, nn

from linear_rope.checks import check_at_least
from linear_rope.positions.tables import PositionTable


class ScorePositions(nn.Module):
    """What positions add to the scores: ``scale · qᵀk + forward(q, k, ...)``; subclass it to add an encoding.

    A subclass is made with those of ``dim``, ``heads``, ``head_dim``, ``causal`` and ``max_length`` that its
    ``__init__`` names.

    Args:
        head_dim: D.
        heads: H, or None where any number will do.
        terms: how many terms of the size of qᵀk a score is made of; ``scale`` is 1 / √(terms · D).
    """

    def __init__(self, head_dim: int, heads: int | None = None, terms: int = 1) -> None:
        super().__init__()
        self.head_dim, self.heads = head_dim, heads
        self.scale = (terms * head_dim) ** -0.5

    def forward(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """What is added to the scaled scores.

        Args:
            q: (B, H, N, D), float32 or float64.
            k: (B, H, K, D), of the same dtype.
            q_positions: (N,) or (B, 1, N) integers.
            k_positions: (K,) or (B, 1, K) integers.

        Returns:
            (B, H, N, K), or what broadcasts to it, of the dtype of ``q``.
        """
        raise NotImplementedError

    def check_heads(self, heads: int, head_dim: int) -> None:
        """Raises ValueError unless the heads are those that this was made for."""
        if self.head_dim != head_dim or self.heads not in (None, heads):
            made = f"{'any number of' if self.heads is None else self.heads} heads of width {self.head_dim}"
            raise ValueError(
                f"score_positions was made for {made}, but the attention has {heads} of width {head_dim}; make it with "
                f"heads={heads}, head_dim={head_dim}"
            )

    def values(self, weights: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """What is added to the output of the heads, (B, H, N, D), for weights (B, H, N, K); None for nothing."""
        return None


class ClippedPositions(ScorePositions):
    """Those that tell distances up to ``max_distance`` apart, which has to be 1 or more."""

    def __init__(self, head_dim: int, heads: int | None = None, terms: int = 1, *, max_distance: int) -> None:
        super().__init__(head_dim, heads, terms)
        check_at_least(1, max_distance=max_distance)
        self.max_distance = max_distance

    def extra_repr(self) -> str:
        return f"max_distance={self.max_distance}"


def distances(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """m − n of query and key, (N, K) or (B, 1, N, K)."""
    return q_positions.unsqueeze(-1) - k_positions.unsqueeze(-2)


def clipped(q_positions: Tensor, k_positions: Tensor, most: int) -> Tensor:
    """The row of a table of 2·``most`` + 1 distances n − m, clipped to ±``most``: (N, K) or (B, 1, N, K)."""
    return (-distances(q_positions, k_positions)).clamp(-most, most) + most


def look_up(products: Tensor, rows: Tensor) -> Tensor:
    """Of ``products`` (B, H, N, R) with every row of a table those of each pair, ``rows`` (N, K) or (B, 1, N, K)."""
    return products.gather(-1, rows.expand(*products.shape[:-1], -1))


def new_table(rows: int, width: int) -> PositionTable:
    """A table of small random vectors."""
    table = PositionTable(rows, width)
    nn.init.normal_(table.weight, std=0.02)
    return table


def new_matrix(dim: int, width: int) -> nn.Linear:
    """A projection of positions, without bias."""
    matrix = nn.Linear(dim, width, bias=False)
    nn.init.normal_(matrix.weight, std=0.02)
    return matrix


def of_heads(x: Tensor, head_dim: int) -> Tensor:
    """(..., R, H·D) → (..., H, R, D)."""
    return x.unflatten(-1, (-1, head_dim)).transpose(-2, -3)
