"""Relative position biases in buckets, T5's (Raffel et al. 2020, arXiv 1910.10683)."""

import math

import torch
from torch import Tensor

from linear_rope.checks import check_at_least
from linear_rope.positions.scores import ScorePositions, distances, new_table


class T5Buckets(ScorePositions):
    """A learned number of each head and bucket of distances is added to the scores (section 2.1 of the paper).

    Half of the buckets are one distance each, the others cover what is up to ``max_distance`` in equal steps of its
    logarithm, and the last all beyond. Where tokens see later ones, half of the buckets are for those. Each layer has
    its own table, which T5 shares over its layers; and scores are over √D, which T5 leaves to its initial weights.

    Args:
        heads: H.
        head_dim: D.
        causal: whether no token sees later ones.
        buckets: number of rows of the table.
        max_distance: from which on all distances are in one bucket.
    """

    def __init__(
        self, heads: int, head_dim: int, causal: bool = False, buckets: int = 32, max_distance: int = 128
    ) -> None:
        super().__init__(head_dim, heads)
        self.causal = causal
        self.one_side = buckets if causal else buckets // 2
        exact = self.one_side // 2
        if exact < 1 or self.one_side % 2 or (not causal and buckets % 2):
            raise ValueError(f"buckets is {buckets}; give a multiple of {2 if causal else 4}")
        check_at_least(1, max_distance=max_distance)
        if max_distance <= exact:
            raise ValueError(f"max_distance is {max_distance}, but {exact} buckets are exact; give more than that")
        self.table = new_table(buckets, heads)
        wide = self.one_side - exact
        growth = max_distance / exact
        # The first distance of each bucket but the first; rounded, so that a whole number stays one.
        self.firsts = [
            *range(1, exact + 1),
            *(math.ceil(round(exact * growth ** (i / wide), 9)) for i in range(1, wide)),
        ]

    def bucket(self, distance: Tensor) -> Tensor:
        """The row of the table for distances m − n of query and key."""
        size = distance.clamp(min=0) if self.causal else distance.abs()
        later = 0 if self.causal else (distance < 0) * self.one_side
        return torch.bucketize(size, torch.tensor(self.firsts, device=size.device), right=True) + later

    def forward(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        rows = self.bucket(distances(q_positions, k_positions))
        added = self.table(rows).movedim(-1, -3).to(q.dtype)  # (H, N, K), or (B, 1, H, N, K)
        return added if rows.dim() == 2 else added.squeeze(1)

    def extra_repr(self) -> str:
        return f"buckets={self.table.num_embeddings}, causal={self.causal}"
