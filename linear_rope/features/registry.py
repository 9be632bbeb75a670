"""Feature maps by name; one more is a file beside this one and a line here, or an installed package's entry point."""

from collections.abc import Callable
from functools import partial
from inspect import signature

from linear_rope.checks import check_weights_are_known
from linear_rope.features.base import FeatureMap, Formula
from linear_rope.features.elementwise import EluFormula, EluPlusOne, ReluFeatures, ReluFormula
from linear_rope.features.favor import FavorFormula, FavorPlus
from linear_rope.features.hedgehog import Hedgehog
from linear_rope.features.taylor import Taylor
from linear_rope.registry import Registry, taken

_BUILT_IN: dict[str, Callable[..., FeatureMap]] = {
    "favor+": FavorPlus,
    "favor+hyperbolic": partial(FavorPlus, hyperbolic=True),
    "favor+paired": partial(FavorPlus, paired=True),
    "elu+1": EluPlusOne,
    "elu+1+paired": partial(EluPlusOne, paired=True),
    "relu": ReluFeatures,
    "hedgehog": Hedgehog,
    "taylor": Taylor,
}
FEATURE_MAPS = Registry(
    "feature_map", "linear_rope.feature_maps", _BUILT_IN, argument=True, otherwise=", or give a FeatureMap"
)
"""called with head_dim, and with those of num_features, redraw_every and seed that they name as arguments"""

FORMULAS: dict[str, type[Formula]] = {
    "favor+": FavorFormula,
    "elu+1": EluFormula,
    "relu": ReluFormula,
    "given": Formula,
}
"""derivatives by hand; called with the constant, if any, and the numbers of a FormulaCall"""

RANDOM_MAPS = tuple(name for name, make in _BUILT_IN.items() if "seed" in signature(make).parameters)
"""the names of those with random features"""


def make_feature_map(
    name: str | FeatureMap,
    head_dim: int,
    *,
    num_features: int | None = None,
    redraw_every: int | None = None,
    seed: int = 0,
) -> FeatureMap:
    """The feature map of a name, of ``FEATURE_MAPS`` or of an installed package's entry points; or the one given.

    Raises:
        ValueError: an unknown name, ``num_features`` or ``redraw_every`` for a map that does not take it (a map without
            random features is not told of the seed), an entry point that makes something else, or a map with weights in
            a plain list.
    """
    if isinstance(name, FeatureMap):
        if num_features is not None or redraw_every is not None:
            raise ValueError(
                "num_features and redraw_every belong to the feature map; set them on the FeatureMap that is given"
            )
        check_weights_are_known(name)
        return name
    make = FEATURE_MAPS[name]
    settings = {"num_features": num_features, "redraw_every": redraw_every, "seed": seed}
    known = taken(make, settings)
    feature_map = make(head_dim, **known)
    if not isinstance(feature_map, FeatureMap):
        raise ValueError(f"feature_map {name!r} made a {type(feature_map).__name__}; it must make a FeatureMap")
    check_weights_are_known(feature_map)
    if "num_features" not in known and num_features not in (None, feature_map.num_features):
        raise ValueError(
            f"num_features is {num_features}, but {name} has {feature_map.num_features} features for head dimension "
            f"{head_dim}; leave it out, or choose favor+"
        )
    if "redraw_every" not in known and redraw_every is not None:
        raise ValueError(f"redraw_every is {redraw_every}, but {name} has no random features; leave it out")
    return feature_map
