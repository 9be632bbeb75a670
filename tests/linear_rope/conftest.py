"""The feature maps that every guarantee of linear attention is tested with."""

from collections.abc import Callable

import pytest

from linear_rope import EluPlusOne, FavorPlus, FeatureMap, ReluFeatures

# For vectors of width 4. With relu's own tiny ε a query that is negative throughout would have no denominator to speak
# of, and a comparison would measure its cancellation.
MAPS: dict[str, Callable[[], FeatureMap]] = {
    "favor+": lambda: FavorPlus(4, 6),
    "favor+hyperbolic": lambda: FavorPlus(4, 6, hyperbolic=True),
    "favor+paired": lambda: FavorPlus(4, 6, paired=True),
    "elu+1": EluPlusOne,
    "elu+1+paired": lambda: EluPlusOne(paired=True),
    "relu": lambda: ReluFeatures(eps=1e-2),
}


@pytest.fixture(params=MAPS)
def feature_map(request: pytest.FixtureRequest) -> FeatureMap:
    return MAPS[request.param]()
