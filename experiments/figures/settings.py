"""Figures for variants that differ in their settings: one panel per kernel and position encoding, a line per
setting.
"""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.figures.curves import beyond_the_axis, failures, finished_seeds, mark_floors, shown_floors
from experiments.figures.panels import (
    grid_of,
    head,
    legend_below,
    lines_by_seed,
    mean_with_interval,
    name_vertical,
    panels_of,
)
from experiments.figures.style import MUTED, draw, label, label_powers_of_ten, variant_style
from experiments.records.schema import Comparison, VariantRecord
from experiments.study import FigureEntry, Study, TableEntry

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


def loss_entries(
    study: Study,
    directory: Path,
    values: pd.DataFrame,
    summary: pd.DataFrame,
    comparison: Comparison,
    curves: pd.DataFrame | None = None,
    reference: str = "",
) -> list[FigureEntry | TableEntry]:
    """Its figures "final-loss" and, with curves, "validation", if there are values of finished runs.

    The first has a line at the mean of the variant ``reference``.
    """
    if values.empty:
        return []
    entry = study.figure("final-loss")
    entries = [draw(directory, entry, final_by_setting, values, summary, comparison, reference)]
    if curves is not None:
        what = {"metric": "bits_per_byte", "quantity": "bits per byte", "start": 0.25}
        entry = study.figure("validation")
        entries.append(draw(directory, entry, curves_by_setting, curves, summary, comparison, **what))
    return [*entries]


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


def curves_by_setting(
    curves: pd.DataFrame,
    summary: pd.DataFrame,
    comparison: Comparison,
    *,
    metric: str,
    quantity: str,
    start: float = 0.0,
    logarithmic: bool = False,
) -> Figure:
    """A metric of the validation split against steps, from the share ``start`` of the run on, with floors.

    A ``logarithmic`` axis is linear between -1 and 1, so that it can show values of both signs.
    """
    groups = by_base(comparison)
    figure, panels = panels_of(groups, COLUMNS, (3.6, 3.0), (0, 1.0), 6.5, sharex=True, sharey=True)
    first_step = start * comparison.config["steps"]
    recorded = curves[(curves["split"] == "validation") & (curves["metric"] == metric) & (curves["step"] >= first_step)]
    failed, finished = failures(summary), finished_seeds(summary)
    looks = looks_by_setting(comparison)
    for axes, variants in panels:
        for variant in variants:
            text, look = setting_label(variant, comparison), looks[variant.name]
            mine, remark = recorded[recorded["variant"] == variant.name], failed.get(variant.name)
            if len(mine) or remark:
                named = f"{text} ({remark})" if remark else text
                seeds = finished.get(variant.name, set())
                lines_by_seed(axes, mine, "step", "value", look | {"markersize": 4.5}, named, seeds, MARKS)
        axes.set_xlabel("optimiser step")
        axes.label_outer()
    floors = shown_floors(comparison, metric, "validation", figure.axes[0].get_ylim())  # the axes share it
    for axes, _ in panels:
        mark_floors(axes, floors)
    if len({text for axes, _ in panels for text in axes.get_legend_handles_labels()[1]}) <= len(LOOKS):
        legend_below(figure, figure.axes, 3, handlelength=3)  # one, as a look means the same in each
    else:
        for axes, _ in panels:
            axes.legend(fontsize=8, loc="best", handlelength=3)
    if logarithmic:
        figure.axes[0].set_yscale("symlog", linthresh=1)  # the axes share it
        label_powers_of_ten(figure.axes[0])
    name_vertical(figure, quantity)
    note = "validation split. Thin: each seed. Thick: mean of the finished seeds."
    head(figure, comparison, note + beyond_the_axis(comparison, metric, "validation", floors))
    return figure


def final_by_setting(
    values: pd.DataFrame, summary: pd.DataFrame, comparison: Comparison, reference: str = ""
) -> Figure:
    """The test split's figure of every seed (dots) with mean and interval, a row per variant, grouped by panel.

    A line marks the mean of the variant ``reference``, if it has one.
    """
    variants = [variant for variants in by_base(comparison).values() for variant in variants]
    metric = f"test_{comparison.objective.metric}"
    tested = summary[summary["metric"] == metric].set_index("variant")
    if comparison.objective.metric == "accuracy":
        tested[["low", "high"]] = tested[["low", "high"]].clip(0, 1)
    figure, ((axes,),) = grid_of(1, 1, (9.2, 1.3 + 0.31 * len(variants)))
    if reference in tested.index:
        marked: Any = tested.loc[reference, "mean"]
        axes.axvline(marked, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
    names = []
    for height, variant in enumerate(variants):
        colour = variant_style(variant)["color"]
        row: Any = tested.loc[variant.name]
        mine = values[(values["variant"] == variant.name) & (values["metric"] == metric)]["value"]
        axes.plot(mine, [height + 0.18] * len(mine), ".", color=colour, markersize=4)
        mean_with_interval(axes, height, row, "D", 5.5, colour)
        unfinished = int(row["planned"] - row["n"])
        remark = f"  ({unfinished} of {row['planned']} not finished)" if unfinished else ""
        names.append(f"{label(base_name(variant))}, {setting_label(variant, comparison)}{remark}")
    axes.set_yticks(range(len(variants)), names)
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
    axes.set_xlabel(f"test {comparison.objective.quantity}; {comparison.objective.better} is better")
    head(figure, comparison, "test split. Small dots: seeds; marker: mean; line: 95 % interval (Student's t).")
    return figure
