"""Feature maps by name: what is built in, what installed packages add, and what a wrong name is answered with."""

import pytest
import torch

from linear_rope import FavorPlus, FeatureMap, LinearRoPEAttention, ModelConfig
from linear_rope.features import FEATURE_MAPS, RANDOM_MAPS, make_feature_map
from tests.linear_rope.tensors import assert_refused, install

GROUP = "linear_rope.feature_maps"


INSTALLED = {
    "squared": lambda head_dim, num_features: FavorPlus(head_dim, num_features or 2 * head_dim),
    "draws": lambda head_dim, num_features, *, seed: FavorPlus(head_dim, num_features, seed=seed + 100),
    "not a map": lambda head_dim, num_features: "features",
    "relu": None,
    "broken": None,
}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Entry points of installed packages; returns the groups that were asked for."""
    return install(monkeypatch, FEATURE_MAPS, INSTALLED)


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_built_in_maps_are_found_without_looking_further(installed: list[str], name: str) -> None:
    assert isinstance(make_feature_map(name, 4), FeatureMap)
    assert installed == []


def test_random_maps_take_their_seed() -> None:
    assert RANDOM_MAPS == ("favor+", "favor+hyperbolic", "favor+paired")
    for name in RANDOM_MAPS:
        first, again, other = (make_feature_map(name, 4, num_features=6, seed=seed).omega for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


def test_an_installed_package_s_map_is_one_of_the_names(installed: list[str]) -> None:
    attention = LinearRoPEAttention(8, 2, feature_map="squared", num_features=6, causal=True)
    assert attention.feature_map.num_features == 6
    assert attention(torch.randn(1, 5, 8)).shape == (1, 5, 8)
    assert set(installed) == {GROUP}
    assert make_feature_map("squared", 4).num_features == 8
    assert ModelConfig(feature_map="squared").feature_map == "squared"


def test_a_function_that_names_seed_is_given_it(installed: list[str]) -> None:
    assert torch.equal(make_feature_map("draws", 4, seed=3).omega, FavorPlus(4, seed=103).omega)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("favor", {}, ["feature_map is 'favor'", "did you mean 'favor+'?", "'elu+1'", "'squared'", "a FeatureMap"]),
        ("broken", {}, ["'broken'", "there is no nowhere"]),
        ("not a map", {}, ["'not a map'", "str", "FeatureMap"]),
        ("squared", {"redraw_every": 5}, ["redraw_every is 5", "leave it out"]),
    ],
)
def test_wrong_names_and_settings(installed: list[str], name: str, settings: dict[str, int], words: list[str]) -> None:
    assert_refused(lambda: make_feature_map(name, 4, **settings), words)
