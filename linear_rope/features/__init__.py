"""Feature maps φ, the kernels of linear attention."""

from linear_rope.features.base import FeatureMap, Features
from linear_rope.features.elementwise import EluPlusOne, GivenFeatures, ReluFeatures
from linear_rope.features.favor import FavorPlus, gaussian_rows
from linear_rope.features.hedgehog import Hedgehog
from linear_rope.features.registry import FEATURE_MAPS, RANDOM_MAPS, make_feature_map
from linear_rope.features.taylor import Taylor

__all__ = [
    "FEATURE_MAPS",
    "RANDOM_MAPS",
    "EluPlusOne",
    "FavorPlus",
    "FeatureMap",
    "Features",
    "GivenFeatures",
    "Hedgehog",
    "ReluFeatures",
    "Taylor",
    "gaussian_rows",
    "make_feature_map",
]
