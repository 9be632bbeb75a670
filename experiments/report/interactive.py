"""The curves of a comparison as the page's interactive figure: Bokeh draws it, report.js steers it.

Everything is written into the page, so that it works without a network.
"""

import json
import re
from typing import Any

import numpy as np
import pandas as pd
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, NumeralTickFormatter, Range1d
from bokeh.plotting import figure
from bokeh.resources import Resources

from experiments.judge.statistics import estimates
from experiments.records.schema import VariantRecord
from experiments.show.colours import DARK_PAPER
from experiments.show.rows import Rows, plotted
from experiments.show.style import dashes_of, variant_colour

POINTS = 25
"""a curve with more records is shown as the means of equal runs of records, about this many"""
AT_ONCE = 8
"""variants that are shown at first; of more, the best of each kernel, and softmax attention without positions"""
AXES = {"step": "optimiser steps", "tokens": "tokens of training", "seconds": "seconds of training (wall clock)"}
SPLITS = {"validation": "validation", "train": "training"}


def interactive(rows: Rows) -> dict[str, Any] | None:
    """What the page needs for the figure of a comparison's curves; None if there are none.

    ``lines``: of each variant its ``name``, whether it is ``shown`` at first, its colours (``light``, ``dark``), and
    ``dashes``, in pixels as SVG and Bokeh have them; those shown come first, in the order in which they end, from the
    highest. ``axes`` and ``splits``: the choices and their words. ``library``: Bokeh's JavaScript. ``plot``: the
    figure as JSON. ``data``: by split, as JSON, ``quantity``, the words of the vertical axis, and ``curves``, the
    columns by variant.
    """
    data: dict[str, dict[str, Any]] = {}
    for split, words in SPLITS.items():
        objective = plotted(rows.curves, split, rows.comparison)
        of_split = rows.curves[(rows.curves["split"] == split) & (rows.curves["metric"] == objective.metric)]
        longest = of_split.groupby(["variant", "seed"]).size().max() if len(of_split) else 0
        made = {name: _curve(rows, of_split, each, round(longest / POINTS)) for name, each in rows.variants.items()}
        if drawn := {name: columns for name, columns in made.items() if columns}:
            data[split] = {"quantity": f"{words} {objective.quantity}", "curves": drawn}
    if not data:
        return None
    first = next(iter(data.values()))["curves"]
    ends = {name: columns["mean"][-1] for name, columns in first.items()}
    shown = _shown_first(rows, ends)
    lines = [
        _line(rows.variants[name], name in shown) for name in sorted(ends, key=lambda n: (n not in shown, -ends[n]))
    ]
    axes = {name: text for name, text in AXES.items() if all(name in columns for columns in first.values())}
    return {
        "lines": lines,
        "axes": axes,
        "splits": {split: SPLITS[split] for split in data},
        "library": "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw),
        "plot": _numbered(_script(_plot(lines, axes))),
        "data": _script(data),
    }


def _curve(rows: Rows, curves: pd.DataFrame, variant: VariantRecord, smoothing: int) -> dict[str, list[float]]:
    """Mean and 95 % interval over the finished seeds (over all, if none is), by step; of so many records at a time."""
    mine = curves[curves["variant"] == variant.name]
    seeds = rows.finished.get(variant.name) or mine["seed"]
    table = mine[mine["seed"].isin(seeds)].pivot_table(index="step", columns="seed", values="value").dropna()
    if table.empty:
        return {}
    groups = np.arange(len(table)) // max(1, smoothing)
    table = table.reset_index().groupby(groups).mean().set_index("step")
    limits = (0.0, 1.0) if mine["metric"].iloc[0] == "accuracy" else (-np.inf, np.inf)
    found = estimates(table.melt(ignore_index=False).reset_index(), "step", "value")
    tokens = rows.comparison.config["batch_size"] * rows.comparison.context_of(variant)
    columns = {
        "step": found.index,
        "tokens": found.index * tokens,
        "mean": found["mean"],
        "low": found["low"].clip(*limits).fillna(found["mean"]),
        "high": found["high"].clip(*limits).fillna(found["mean"]),
    }
    timed = rows.curves[(rows.curves["variant"] == variant.name) & rows.curves["seed"].isin(seeds)]
    timed = timed[(timed["split"] == "train") & (timed["metric"] == "seconds")]
    clocks = timed.pivot_table(index="step", columns="seed", values="value").dropna()
    # A run that was stopped counts from 0 again where it goes on.
    seconds = clocks.diff().where(lambda passed: passed >= 0, clocks).cumsum().mean(axis=1)
    if len(seconds):
        columns["seconds"] = np.interp(found.index, [0, *seconds.index], [0, *seconds])
    return {name: [float(f"{value:.6g}") for value in values] for name, values in columns.items()}


def _shown_first(rows: Rows, ends: dict[str, float]) -> set[str]:
    if len(ends) <= AT_ONCE:
        return {*ends}
    worst_first = sorted(ends, key=ends.__getitem__, reverse=rows.comparison.objective.better == "lower")
    best = {rows.variants[name].kernel: name for name in worst_first}
    return {*best.values(), *({"softmax-none"} & ends.keys())}


def _line(variant: VariantRecord, shown: bool) -> dict[str, Any]:
    dashes = " ".join(str(max(1, round(2 * length))) for length in dashes_of(variant.position))
    light, dark = variant_colour(variant), variant_colour(variant, DARK_PAPER)
    return {"name": variant.name, "shown": shown, "light": light, "dark": dark, "dashes": dashes}


def _plot(lines: list[dict[str, Any]], axes: dict[str, str]) -> Any:
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
        name, color = line["name"], line["light"]
        look: Any = {"source": ColumnDataSource(empty, name=f"data {name}"), "visible": line["shown"]}
        plot.varea("x", "low", "high", fill_color=color, fill_alpha=0.13, name=f"band {name}", **look)
        dashes: Any = [int(length) for length in line["dashes"].split()]
        plot.line("x", "mean", line_color=color, line_width=2, line_dash=dashes, name=name, **look)
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
