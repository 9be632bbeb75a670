"""Disentangled attention, DeBERTa's (He et al. 2020, arXiv 2006.03654)."""

from torch import Tensor

from linear_rope.positions.scores import (
    ClippedPositions,
    distances,
    look_up,
    new_matrix,
    new_table,
    of_heads,
)


class Deberta(ClippedPositions):
    """Content attends to distance and distance to content (eq. 4 of the paper).

    Score (m, n) is (q_mᵀk_n + q_mᵀ(P W^K)_δ + k_nᵀ(P W^Q)_δ) / √(3D), P a learned vector of each distance and
    δ = clip(m − n + max_distance, 0, 2·max_distance − 1). Both terms have this δ, as in the authors' code; the paper
    writes δ(n, m) in the last, which is another order of its vectors. Each layer has its own P, which the paper
    shares over its layers, and there is no absolute position before the output.

    Args:
        dim: width of P.
        heads: H.
        head_dim: D.
        max_distance: at which distances are clipped; the paper has all of its 512 positions.
    """

    def __init__(self, dim: int, heads: int, head_dim: int, max_distance: int = 128) -> None:
        super().__init__(head_dim, heads, terms=3, max_distance=max_distance)
        self.table = new_table(2 * max_distance, dim)
        self.query = new_matrix(dim, heads * head_dim)
        self.key = new_matrix(dim, heads * head_dim)

    def forward(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        rows = distances(q_positions, k_positions) + self.max_distance
        rows = rows.clamp(0, 2 * self.max_distance - 1)
        table = self.table.weight.to(q.dtype)
        queries, keys = (
            of_heads(table @ matrix.weight.to(q.dtype).mT, self.head_dim) for matrix in (self.query, self.key)
        )
        return (look_up(q @ keys.mT, rows) + look_up(k @ queries.mT, rows.mT).mT) * self.scale
