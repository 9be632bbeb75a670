"""Positions that enter at every block: what all such encodings have in common."""

from torch import Tensor, nn


class BlockPositions(nn.Module):
    """What positions add to the input of every block; subclass it and define :meth:`forward` to add an encoding.

    A subclass is made with those of ``dim``, ``layers``, ``max_length`` and ``initial_std`` that its ``__init__``
    names, as in :class:`linear_rope.ModelConfig`.
    """

    def forward(self, positions: Tensor) -> Tensor:
        """(N,) or (B, N) int64 → (layers, N, dim) or (layers, B, N, dim)."""
        raise NotImplementedError
