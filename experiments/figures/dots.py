"""Final figures: one row per variant with every seed, the mean and its interval."""

import textwrap
from math import nan
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from experiments.figures.curves import failures
from experiments.figures.panels import grid_of, head, mean_with_interval
from experiments.figures.style import MUTED, by_kernel, label, variant_style
from experiments.records.schema import Comparison

ROW_INCHES, CLOSE_ROW_INCHES = 0.42, 0.3
MANY_ROWS = 18
"""from which on they are close"""
SEED_OFFSET = 0.24
"""seeds are drawn this part of a row below the mean, so that neither hides the other"""
EQUAL_OFFSET = 0.1
"""and those of equal value this part of a row below each other"""
MARKS = "Small dots: seeds; marker: mean; line: 95 % interval of the mean (Student's t)."
NOTE: Any = {"va": "center", "color": MUTED, "fontsize": 8.5}


class Rows:
    """The vertical places of the variants: grouped by kernel, first at the top, a gap between kernels."""

    def __init__(self, comparison: Comparison, summary: pd.DataFrame) -> None:
        notes = failures(summary)
        groups = by_kernel(comparison.variants).values()
        gaps = [0.5 * number for number, group in enumerate(groups) for _ in group]
        self.comparison = comparison
        self.variants = [variant for group in groups for variant in group]
        self.heights = [-place - gap for place, gap in enumerate(gaps)]
        self.baselines = {v.name for v in self.variants if comparison.baseline_of(v) == v.name}
        self.labels = [
            f"{label(v.name)}\n({notes[v.name]})" if v.name in notes else label(v.name) for v in self.variants
        ]

    def figure(self, columns: int, what: str, marks: str = "") -> tuple[Figure, list[Axes]]:
        """Panels side by side; below the title ``what`` they show and what the ``marks`` are, by default of seeds."""
        inches = CLOSE_ROW_INCHES if len(self.heights) >= MANY_ROWS else ROW_INCHES
        size = (8.6 / columns, 1.5 + inches * (1 - self.heights[-1]))
        figure, (panels,) = grid_of(1, columns, size, sharey=True)
        panels[0].set_yticks(self.heights, self.labels)
        panels[0].set_ylim(self.heights[-1] - 0.7, 0.7)
        for axes in panels:
            axes.tick_params(axis="y", length=0)
            axes.margins(x=0.1)
            ticks = 4 if columns > 2 else 6 if columns > 1 else 10
            axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10]))
        marks = marks or {
            1: "One seed: no interval.",
            2: "Small dots: seeds; marker: mean. Two seeds: no interval.",
        }.get(len(self.comparison.seeds), MARKS)
        head(figure, self.comparison, f"{what}. {marks}")
        return figure, panels


def final_figure(values: pd.DataFrame, summary: pd.DataFrame, comparison: Comparison) -> Figure:
    """The primary metric on the test split and, beside it, the paired difference to the variant's baseline."""
    objective = comparison.objective
    rows = Rows(comparison, summary)
    difference = f"test_{objective.metric}_minus_baseline"
    has_baselines = difference in set(summary["metric"])
    figure, panels = rows.figure(2 if has_baselines else 1, "test split")
    _dots(panels[0], rows, values, summary, f"test_{objective.metric}")
    panels[0].set_xlabel(f"test {objective.quantity}")
    if has_baselines:
        _dots(panels[1], rows, values, summary, difference)
        panels[1].axvline(0, color=MUTED, linewidth=1.0)
        panels[1].set_xlabel(
            textwrap.fill(f"{objective.quantity} minus those of the baseline ({objective.where_better})", 36)
        )
        for variant, height in zip(rows.variants, rows.heights, strict=True):
            if variant.name in rows.baselines:
                look: Any = NOTE | {"backgroundcolor": "white", "textcoords": "offset points"}
                panels[1].annotate("baseline", (0, height), (5, 0), **look)
    return figure


def throughput_figure(values: pd.DataFrame, summary: pd.DataFrame, comparison: Comparison) -> Figure:
    """Median training throughput of every run, from zero."""
    rows = Rows(comparison, summary)
    figure, (axes,) = rows.figure(1, "training")
    _dots(axes, rows, values, summary, "tokens_per_second")
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens per second and run (median over the run)")
    axes.xaxis.set_major_formatter(EngFormatter())
    means = summary[summary["metric"] == "tokens_per_second"].set_index("variant")["mean"]
    for variant, height in zip(rows.variants, rows.heights, strict=True):
        if means[variant.name] > 0:
            _beside(axes, height, f"{means[variant.name]:,.0f}")
    _beside(axes, 0.85, "mean", va="bottom")
    return figure


def _dots(axes: Axes, rows: Rows, values: pd.DataFrame, summary: pd.DataFrame, metric: str) -> None:
    """Every seed as a small dot, the mean as the variant's marker, the interval as a line with caps."""
    means = summary[summary["metric"] == metric].set_index("variant")
    for variant, height in zip(rows.variants, rows.heights, strict=True):
        name, look = variant.name, variant_style(variant)
        if name not in means.index:
            continue
        mine = values[(values["variant"] == name) & (values["metric"] == metric)]["value"].dropna()
        if len(mine) > 1 or (len(mine) == 1 and pd.isna(means.loc[name]["mean"])):
            heights = height - SEED_OFFSET - EQUAL_OFFSET * mine.groupby(mine).cumcount()
            axes.plot(mine, heights, ".", color=look["color"], markersize=4)
        row: Any = means.loc[name].to_dict()
        if metric == "steps_to_baseline" and name in rows.baselines:
            row = row | {"low": nan}
        mean_with_interval(axes, height, row, look["marker"], 6.5, look["color"])
        if row["n"] == 0:
            is_compared = metric.endswith(("_minus_baseline", "_to_baseline"))
            text = "nothing to compare" if is_compared else "no finished seed"
            axes.text(0.03, height, text, transform=axes.get_yaxis_transform(), **NOTE)


def _beside(axes: Axes, height: float, text: str, va: str = "center") -> None:
    axes.text(1.02, height, text, transform=axes.get_yaxis_transform(), va=va, fontsize=9, color="#333333")
