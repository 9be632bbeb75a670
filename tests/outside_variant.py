"""A variant that somebody else wrote, by docs/extending.md alone: linear attention with the square of a softplus."""

import torch.nn.functional as F

from linear_rope.features import FeatureMap, Features
from linear_rope.features.registry import FEATURE_MAPS


class SoftplusSquared(FeatureMap):
    """φ(x) = softplus(x)², for each channel of a head."""

    def __init__(self, head_dim=None):
        super().__init__(head_dim, num_features=head_dim)

    def features(self, x):
        return Features(F.softplus(x).square(), None)


FEATURE_MAPS["softplus-squared"] = SoftplusSquared
