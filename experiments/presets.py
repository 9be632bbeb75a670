"""Ready configurations, by the size of machine they are for: presets.toml, and what a study has of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.config import Config
from experiments.extensions import choices
from experiments.study import Study, read_toml

PRESETS = ("smoke", "cpu", "gpu-small", "gpu", "paper")
"""of the studies that have none of their own"""
OLD = "v0"
"""the preset cpu without a study's recipe, or behind the name of another preset that one without"""
NOT_CONFIG = ("base", "description", "seeds", "of_data")
"""what a preset has besides settings of Config"""
GENERAL: dict[str, dict[str, Any]] = read_toml(Path(__file__).with_suffix(".toml"))


@dataclass(frozen=True)
class Preset:
    """A configuration and how many seeds it is run with unless told otherwise."""

    description: str
    config: Config
    seeds: int
    of_data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """data sets that a study runs on one after the other, and what differs from ``config`` for each. ``instead_of``
    names another one: it is left out where that can be had"""

    def config_of(self, settings: Mapping[str, Any]) -> Config:
        """The configuration with these settings, and those of their data set below them."""
        own = dict(self.of_data.get(settings.get("data", self.config.data), {}))
        own.pop("instead_of", None)
        if "initial_std" in settings:
            own["initial_spread"] = 0.0
        return replace(self.config, **own | dict(settings))


def size_of(name: str) -> str:
    """The preset without the old recipe: "cpu" of "v0", "smoke" of "smoke,v0", any other as it is."""
    return "cpu" if name == OLD else name.removesuffix(f",{OLD}")


def get_preset(name: str, study: Study | None = None) -> Preset:
    """The preset of a study, or the general one. Raises ValueError that lists those there are."""
    size = size_of(name)
    own = (study.presets if study else None) or {each: {} for each in PRESETS}
    if size not in own:
        raise ValueError(
            f"--preset is {name}, which {study.name if study else 'none'} does not have; {choices(name, [*own])}"
        )
    shared = study.shared if study else {}
    recipe = GENERAL[study.recipe][size] if study and study.recipe and size == name else {}
    return _preset({"base": size, **shared, **own[size]} | recipe)


def _preset(settings: Mapping[str, Any]) -> Preset:
    """What the settings make of the preset that they name as their ``base``, or of the default configuration."""
    base = _preset(GENERAL[settings["base"]]) if "base" in settings else Preset("", Config(), seeds=3)
    config = {name: value for name, value in settings.items() if name not in NOT_CONFIG}
    return Preset(
        settings.get("description", base.description),
        replace(base.config, **config),
        settings.get("seeds", base.seeds),
        settings.get("of_data", base.of_data),
    )
