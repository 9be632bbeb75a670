"""Better relative position embeddings (Huang et al. 2020, arXiv 2009.13658)."""

from torch import Tensor

from linear_rope.positions.scores import ClippedPositions, clipped, look_up, new_table


class Huang(ClippedPositions):
    """A vector of each clipped distance is multiplied by the query and by the key: method 4 of the paper.

    Score (m, n) is (q_mᵀk_n + q_mᵀa_r + k_nᵀa_r) / √D, with r = clip(n − m, ±max_distance). Heads share the table;
    each layer has its own.

    Args:
        head_dim: D.
        max_distance: at which distances are clipped; the paper has all of its 512 positions.
    """

    def __init__(self, head_dim: int, max_distance: int = 128) -> None:
        super().__init__(head_dim, max_distance=max_distance)
        self.table = new_table(2 * max_distance + 1, head_dim)

    def forward(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        rows, table = clipped(q_positions, k_positions, self.max_distance), self.table.weight.to(q.dtype)
        return (look_up(q @ table.mT, rows) + look_up(k @ table.mT, rows.mT).mT) * self.scale
