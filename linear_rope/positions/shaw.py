"""Relative position representations (Shaw et al. 2018, arXiv 1803.02155)."""

from torch import Tensor

from linear_rope.positions.scores import ClippedPositions, clipped, look_up, new_table


class Shaw(ClippedPositions):
    """A vector of each clipped distance is added to every key and to every value (eq. 3 and 4 of the paper).

    Score (m, n) is q_mᵀ(k_n + a^K_r) / √D and output m is Σ_n α_mn (v_n + a^V_r), with r = clip(n − m, ±max_distance).
    Heads share both tables, as in the paper; each layer has its own.

    Args:
        head_dim: D.
        max_distance: at which distances are clipped; the paper's is 16.
    """

    def __init__(self, head_dim: int, max_distance: int = 16) -> None:
        super().__init__(head_dim, max_distance=max_distance)
        self.keys_table = new_table(2 * max_distance + 1, head_dim)
        self.values_table = new_table(2 * max_distance + 1, head_dim)

    def forward(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        rows = clipped(q_positions, k_positions, self.max_distance)
        return look_up(q @ self.keys_table.weight.to(q.dtype).mT, rows) * self.scale

    def values(self, weights: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        rows = clipped(q_positions, k_positions, self.max_distance).expand_as(weights)
        # The weights of all keys at one distance together, so that nothing of N · K · D is made.
        of_distance = weights.new_zeros(*weights.shape[:-1], 2 * self.max_distance + 1).scatter_add(-1, rows, weights)
        return of_distance @ self.values_table.weight.to(weights.dtype)
