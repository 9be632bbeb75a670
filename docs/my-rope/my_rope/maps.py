"""A feature map: squareplus (Barron 2021, arXiv 2112.11687)."""

from torch import Tensor

from linear_rope.features import FeatureMap, Features


class SquarePlus(FeatureMap):
    """φ(x) = (x + √(x² + 4))/2; M = D."""

    def __init__(self, head_dim: int | None = None) -> None:
        super().__init__(head_dim, num_features=head_dim)

    def features(self, x: Tensor) -> Features:
        # The same number without a difference of two large ones, which would be 0 for x far below 0.
        values = x.relu() + 2 / ((x.square() + 4).sqrt() + x.abs())
        return Features(values, log_scale=None)
