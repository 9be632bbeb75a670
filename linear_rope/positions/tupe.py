"""Untied positional encoding, TUPE (Ke et al. 2020, arXiv 2006.15595)."""

from torch import Tensor

from linear_rope.checks import check_at_least
from linear_rope.positions.scores import ScorePositions, new_matrix, new_table, of_heads
from linear_rope.tracing import is_watched


class Tupe(ScorePositions):
    """Positions have queries and keys of their own (TUPE-A, eq. 7 of the paper).

    Score (m, n) is (q_mᵀk_n + (p_m U^Q)ᵀ(p_n U^K)) / √(2D), p a learned vector of each position. The paper's special
    treatment of a [CLS] token is left out, and each layer has its own p and U, which the paper shares over its layers.

    Args:
        dim: width of p.
        heads: H.
        head_dim: D.
        max_length: positions in the table p.
    """

    def __init__(self, dim: int, heads: int, head_dim: int, max_length: int = 512) -> None:
        super().__init__(head_dim, heads, terms=2)
        check_at_least(1, max_length=max_length)
        self.table = new_table(max_length, dim)
        self.query = new_matrix(dim, heads * head_dim)
        self.key = new_matrix(dim, heads * head_dim)

    def forward(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Raises ValueError for a position beyond the table, where nothing traces the call."""
        length = self.table.num_embeddings
        if not is_watched() and ((k_positions >= length).any() or (q_positions >= length).any()):
            raise ValueError(
                f"positions go to {max(int(q_positions.max()), int(k_positions.max()))}, but the learned table ends at "
                f"{length - 1}; give a larger max_length (of Tupe, or of the model)"
            )
        queries, keys = (
            of_heads(self.table(at).to(q.dtype) @ matrix.weight.to(q.dtype).mT, self.head_dim)
            for at, matrix in ((q_positions, self.query), (k_positions, self.key))
        )
        added = queries @ keys.mT * self.scale  # (H, N, K), or (B, 1, H, N, K)
        return added if q_positions.dim() == k_positions.dim() == 1 else added.squeeze(1)
