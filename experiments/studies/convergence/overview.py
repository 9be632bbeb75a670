"""A few lines for a first look: all of a small comparison; else softmax attention without and with RoPE, and the best
RoPE variant of each map."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.figures.curves import finished_seeds, plotted, shown_floors
from experiments.figures.panels import head
from experiments.figures.style import MUTED, label, variant_colour
from experiments.judge.statistics import estimates
from experiments.records.schema import Comparison, VariantRecord

SOFTMAX = ("softmax-none", "softmax-rope")
MAPS = ("favor+", "elu+1", "relu")
ROPE = ("rope-before", "rope-after")
MOST_LINES = 7
"""of a comparison that is shown whole"""
CUT = 0.1
"""share of the run that may lie above the figure: the steep beginning would flatten all differences"""
LINE = 0.055
"""height of a label's line, as a share of the axis"""


def overview_variants(curves: pd.DataFrame, summary: pd.DataFrame, comparison: Comparison) -> list[VariantRecord]:
    """The variants, the lowest final loss last; none if one of them was not trained to the end."""
    if comparison.objective.better != "lower" or "validation" not in set(curves["split"]):
        return []
    ends = {name: float(rows["mean"].iloc[-1]) for name, rows in means(curves, summary, comparison).items()}
    by_name = {variant.name: variant for variant in comparison.variants if variant.name in ends}
    if len(comparison.variants) <= MOST_LINES:
        is_whole = 1 < len(comparison.variants) == len(by_name)
        return sorted(by_name.values(), key=lambda variant: -ends[variant.name]) if is_whole else []
    chosen = [by_name[name] for name in SOFTMAX if name in by_name]
    for kernel in MAPS:
        names = [f"{kernel}-{position}" for position in ROPE if f"{kernel}-{position}" in by_name]
        chosen += [by_name[name] for name in sorted(names, key=lambda name: ends[name])[:1]]
    if len(chosen) < len(SOFTMAX) + len(MAPS):
        return []
    return sorted(chosen, key=lambda variant: -ends[variant.name])


def means(curves: pd.DataFrame, summary: pd.DataFrame, comparison: Comparison) -> dict[str, pd.DataFrame]:
    """By variant: step, mean and 95 % interval of the validation figure, at the steps that all finished seeds have."""
    metric = plotted(curves, "validation", comparison).metric
    rows = curves[(curves["split"] == "validation") & (curves["metric"] == metric)]
    found = {}
    for name, seeds in ((name, seeds) for name, seeds in finished_seeds(summary).items() if seeds):
        mine = rows[(rows["variant"] == name) & rows["seed"].isin(seeds)]
        table = estimates(mine, "step", "value").reset_index()
        whole = table[table["n"] == len(seeds)].sort_values("step").reset_index(drop=True)
        if len(whole):
            found[name] = whole
    return found


def overview_figure(curves: pd.DataFrame, summary: pd.DataFrame, comparison: Comparison) -> Figure:
    """A line for each, with its interval as a band, its name and its last value at its end; floors are grey."""
    tables, variants = means(curves, summary, comparison), overview_variants(curves, summary, comparison)
    figure = Figure(figsize=(8.6, 4.4))
    axes = figure.subplots()
    last = max(float(tables[variant.name]["step"].max()) for variant in variants)
    shown = [table[table["step"] >= CUT * last] for table in (tables[variant.name] for variant in variants)]
    values = pd.concat([table[column].dropna() for table in shown for column in ("mean", "low")])
    low, high = float(values.min()), float(max(table["mean"].max() for table in shown))
    floors = shown_floors(comparison, comparison.objective.metric, "validation", (low, high))
    low, high = min([low, *(floor.value for floor in floors)]), max([high, *(floor.value for floor in floors)])
    margin = 0.04 * (high - low)
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlim(0, last)
    ends = []
    for variant in variants:
        table = tables[variant.name]
        ink = variant_colour(variant)
        axes.plot(table["step"], table["mean"], color=ink, linewidth=2.2)
        axes.fill_between(table["step"], table["low"], table["high"], color=ink, alpha=0.2, linewidth=0)
        ends.append((float(table["mean"].iloc[-1]), f"{label(variant.name)}  {table['mean'].iloc[-1]:.2f}", ink))
    for floor in floors:
        axes.axhline(floor.value, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        ends.append((floor.value, f"{floor.name}  {floor.value:.2f}", MUTED))
    ends.sort(key=lambda end: -end[0])
    for height, (_, text, ink) in zip(apart([end for end, _, _ in ends], axes.get_ylim()), ends, strict=True):
        place: Any = {"xycoords": axes.get_yaxis_transform(), "va": "center", "annotation_clip": False}
        axes.annotate(text, (1.015, height), color=ink, fontsize=10.5, fontweight="bold", **place)
    axes.set_xlabel(f"training step (one step = {comparison.read_in(1)})")
    axes.set_ylabel(f"validation {comparison.objective.quantity}")
    number = min(int(tables[variant.name]["n"].iloc[-1]) for variant in variants)
    band = "the band is the 95 % interval" if number > 2 else "too few seeds for an interval"
    head(figure, comparison, f"means over the seeds; {band}")
    return figure


def apart(heights: list[float], limits: tuple[float, float]) -> list[float]:
    """Heights of labels, given from the highest to the lowest, moved as little as keeps them a line apart."""
    line = LINE * (limits[1] - limits[0])
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and bottom(groups[-2], line) - top(groups[-1], line) < line - 1e-9:
            groups[-2:] = [groups[-2] + groups[-1]]
    return [top(group, line) - line * index for group in groups for index in range(len(group))]


def top(group: list[float], line: float) -> float:
    """The height of the first label of a group whose labels stand a line apart around their mean."""
    return sum(group) / len(group) + line * (len(group) - 1) / 2


def bottom(group: list[float], line: float) -> float:
    """The height of its last label."""
    return sum(group) / len(group) - line * (len(group) - 1) / 2
