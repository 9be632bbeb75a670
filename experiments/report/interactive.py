"""The curves of a comparison as the page's interactive figure: Bokeh draws it, report.js steers it.

Everything is written into the page, so that it works without a network.
"""

import json
import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, NumeralTickFormatter, Range1d
from bokeh.plotting import figure
from bokeh.resources import Resources

from experiments.judge.statistics import estimate
from experiments.records.schema import Comparison, VariantRecord
from experiments.show.colours import DARK_PAPER
from experiments.show.rows import finished_seeds, plotted
from experiments.show.style import dashes_of, variant_colour

POINTS = 25
"""a curve with more records is shown as the means of equal runs of records, about this many"""
AT_ONCE = 8
"""variants that are shown at first; of more, the best of each kernel, and softmax attention without positions"""
AXES = {"step": "optimiser steps", "tokens": "tokens of training", "seconds": "seconds of training (wall clock)"}
SPLITS = {"validation": "validation", "train": "training"}


class Line(NamedTuple):
    """A variant's entry beside the figure, which switches its line off and on."""

    name: str
    shown: bool
    light: str
    dark: str
    dashes: str
    """of the line, in pixels, as SVG and Bokeh have it; empty: a solid one"""


class Interactive(NamedTuple):
    """What the page needs for the figure."""

    lines: list[Line]
    """first those that are shown; in the order in which they end, the highest first"""
    axes: dict[str, str]
    splits: dict[str, str]
    library: str
    """Bokeh's JavaScript"""
    plot: str
    """the figure, JSON for Bokeh"""
    curves: dict[str, dict[str, Any]]
    """split -> ``curves``: variant -> the columns of its curve; and ``quantity``, the words of the vertical axis"""

    @property
    def data(self) -> str:
        """The curves as JSON."""
        return _script(self.curves)


def interactive(curves: pd.DataFrame, summary: pd.DataFrame, comparison: Comparison) -> Interactive | None:
    """The figure of a comparison's curves; None if there is none."""
    seeds = finished_seeds(summary)
    data: dict[str, dict[str, Any]] = {}
    for split, words in SPLITS.items():
        objective = plotted(curves, split, comparison)
        rows = curves[(curves["split"] == split) & (curves["metric"] == objective.metric)]
        longest = rows.groupby(["variant", "seed"]).size().max() if len(rows) else 0
        found = {
            variant.name: _curve(curves, rows, comparison, variant, seeds.get(variant.name), round(longest / POINTS))
            for variant in comparison.variants
        }
        if drawn := {name: columns for name, columns in found.items() if columns is not None}:
            data[split] = {"quantity": f"{words} {objective.quantity}", "curves": drawn}
    if not data:
        return None
    first = next(iter(data.values()))["curves"]
    variants = [variant for variant in comparison.variants if variant.name in first]
    ends = {name: columns["mean"][-1] for name, columns in first.items()}
    shown = _shown_first(variants, ends, comparison.objective.better)
    lines = [
        Line(v.name, v.name in shown, variant_colour(v), variant_colour(v, DARK_PAPER), _pixels(dashes_of(v.position)))
        for v in sorted(variants, key=lambda variant: (variant.name not in shown, -ends[variant.name]))
    ]
    axes = {name: text for name, text in AXES.items() if all(name in columns for columns in first.values())}
    library = "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)
    plot = _numbered(_script(_plot(lines, axes)))
    return Interactive(lines, axes, {split: SPLITS[split] for split in data}, library, plot, data)


def _curve(
    curves: pd.DataFrame,
    rows: pd.DataFrame,
    comparison: Comparison,
    variant: VariantRecord,
    finished: set[int] | None,
    smoothing: int,
) -> dict[str, list[float]] | None:
    """Mean and 95 % interval over the finished seeds (over all, if none is), by step; of so many records at a time."""
    rows = rows[(rows["variant"] == variant.name) & (rows["seed"].isin(finished) if finished else True)]
    table = rows.pivot_table(index="step", columns="seed", values="value").dropna()
    if table.empty:
        return None
    group, metric = np.arange(len(table)) // max(1, smoothing), rows["metric"].iloc[0]
    table = table.reset_index().groupby(group).mean().set_index("step")
    least, most = (0.0, 1.0) if metric == "accuracy" else (-np.inf, np.inf)
    estimates = [estimate(list(row)) for row in table.to_numpy()]
    tokens = comparison.config["batch_size"] * comparison.context_of(variant)
    columns = {
        "step": list(map(float, table.index)),
        "tokens": [float(step) * tokens for step in table.index],
        "mean": [each.mean for each in estimates],
        "low": [max(each.low, least) if each.has_interval else each.mean for each in estimates],
        "high": [min(each.high, most) if each.has_interval else each.mean for each in estimates],
    }
    timed = curves[(curves["variant"] == variant.name) & (curves["split"] == "train") & (curves["metric"] == "seconds")]
    seconds = timed.groupby("step")["value"].mean()
    if len(seconds):
        steps = [0, *seconds.index]
        columns["seconds"] = np.interp(columns["step"], steps, np.maximum.accumulate([0, *seconds])).tolist()
    return {name: [float(f"{value:.6g}") for value in values] for name, values in columns.items()}


def _shown_first(variants: list[VariantRecord], ends: dict[str, float], better: str) -> set[str]:
    if len(variants) <= AT_ONCE:
        return {variant.name for variant in variants}
    sign = 1 if better == "lower" else -1
    best: dict[str, str] = {}
    for variant in sorted(variants, key=lambda variant: sign * ends[variant.name]):
        best.setdefault(variant.kernel, variant.name)
    return {*best.values(), *(v.name for v in variants if v.name == "softmax-none")}


def _pixels(dashes: list[float]) -> str:
    return " ".join(str(max(1, round(2 * length))) for length in dashes)


def _plot(lines: list[Line], axes: dict[str, str]) -> Any:
    """The figure, empty of curves: report.js fills it, and knows its parts by name."""
    plot = figure(
        sizing_mode="stretch_both",
        min_width=200,
        toolbar_location=None,
        tools="",
        x_range=Range1d(),
        y_range=Range1d(),
        name="curves",
        output_backend="canvas",
        background_fill_color=None,
        border_fill_color=None,
    )
    empty: dict[str, Any] = {name: [] for name in ("x", "mean", "low", "high")}
    for line in lines:
        source = ColumnDataSource(empty, name=f"data {line.name}")
        look: Any = {"source": source, "visible": line.shown}
        plot.varea("x", "low", "high", fill_color=line.light, fill_alpha=0.13, name=f"band {line.name}", **look)
        dashes: Any = [int(length) for length in line.dashes.split()]
        plot.line("x", "mean", line_color=line.light, line_width=2, line_dash=dashes, name=line.name, **look)
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0[.]0")
    plot.xaxis.axis_label = next(iter(axes.values()))
    plot.outline_line_color = None
    plot.xgrid.visible = False
    return json_item(plot)


def _script(value: Any) -> str:
    """JSON that can stand in a script element."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _numbered(plot: str) -> str:
    """Bokeh's identifiers numbered anew: they count on in a process, and equal records give equal files."""
    identifier = re.compile(r'"(p\d+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"')
    numbers = {name: f'"m{number}"' for number, name in enumerate(dict.fromkeys(identifier.findall(plot)))}
    return identifier.sub(lambda match: numbers[match[1]], plot)
