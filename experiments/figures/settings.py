"""Figures for variants that differ in their settings: one panel per kernel and position encoding, a line per
setting.
"""

from typing import Any

from experiments.records.schema import Comparison, VariantRecord

LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#000000", "linestyle": "-", "marker": "o"},
    {"color": "#d04a02", "linestyle": (0, (5, 2)), "marker": "^"},
    {"color": "#0072B2", "linestyle": (0, (1, 1.2)), "marker": "s"},
    {"color": "#008561", "linestyle": (0, (6, 2, 1, 2)), "marker": "D"},
    {"color": "#b8458b", "linestyle": (0, (3, 1)), "marker": "v"},
    {"color": "#8a6a00", "linestyle": (0, (4, 1, 1, 1, 1, 1)), "marker": "P"},
    {"color": "#c1121f", "linestyle": (0, (8, 2)), "marker": "X"},
)
"""by the settings of the variant; where there are more of them, by its place in its panel"""
COLUMNS = 3


def look_of(place: int) -> dict[str, Any]:
    """The look of the value at a place of a list: no two are alike among the first seven times seven."""
    number, again = place % len(LOOKS), place // len(LOOKS)
    other = LOOKS[(number + again) % len(LOOKS)]
    return {**other, "color": LOOKS[number]["color"]}


WORDS = {
    "redraw_every": lambda value: "never redrawn" if value == "0" else f"redrawn every {value} steps",
    "num_features": lambda value: f"M = {value}",
    "decay": lambda value: {
        "none": "no decay",
        "fixed": "fixed decay",
        "alibi": "ALiBi's decay",
        "retnet": "RetNet's decay",
    }.get(value, value),
    "local_conv": lambda value: "" if value == "0" else "local convolution",
    "short_conv": lambda value: "" if value == "0" else "short convolution",
    "qk_norm": lambda value: "" if value == "no" else "normalised queries and keys",
}
"""how a figure says a setting; others by their name and value"""
MARKS = 6


def base_name(variant: VariantRecord) -> str:
    """The variant without its settings."""
    return str(variant.name).partition("@")[0]


def named_settings(variant: VariantRecord) -> dict[str, str]:
    """The settings in a variant's name."""
    return dict(part.split("=", 1) for part in variant.name.split("@")[1:])


def by_base(comparison: Comparison) -> dict[str, list[VariantRecord]]:
    """The variants by what they are without their settings, in order of appearance."""
    names = dict.fromkeys(map(base_name, comparison.variants))
    return {name: [variant for variant in comparison.variants if base_name(variant) == name] for name in names}


def setting_label(variant: VariantRecord, comparison: Comparison) -> str:
    """What distinguishes a variant in its panel, such as "redrawn every 100 steps"."""
    varied = dict.fromkeys(key for other in comparison.variants for key in named_settings(other))
    own = named_settings(variant)
    values = {key: own.get(key, str(comparison.config[key])) for key in varied}
    if "num_features" in values and not base_name(variant).startswith("favor"):
        # Maps that draw nothing have as many features as a head has channels, paired twice as many.
        values["num_features"] = "2·D" if "+paired" in base_name(variant) else "D"
    others = {key: lambda value, key=key: f"{key.replace('_', ' ')} {value}" for key in values}
    return ", ".join(filter(None, ((others | WORDS)[key](value) for key, value in values.items())))


def looks_by_setting(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """A look for each variant: equal for equal settings, if there are few enough of those; else by place in a panel."""
    labels = list(dict.fromkeys(setting_label(variant, comparison) for variant in comparison.variants))
    found = {}
    for variants in by_base(comparison).values():
        for place, variant in enumerate(variants):
            number = labels.index(setting_label(variant, comparison)) if len(labels) <= len(LOOKS) else place
            found[variant.name] = LOOKS[number % len(LOOKS)]
    return found
