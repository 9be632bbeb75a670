"""The feature maps and implementations that every guarantee of linear attention is tested with."""

import pytest

from linear_rope import FeatureMap
from tests.linear_rope.tensors import FORMS, KINDS, MAPS


@pytest.fixture(params=KINDS)
def feature_map(request: pytest.FixtureRequest) -> FeatureMap:
    return MAPS[request.param](1e-6)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)
