"""The figures of the length study."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures.panels import head, seeds_and_mean
from experiments.figures.style import MUTED, by_kernel, draw, label, variant_style
from experiments.records.schema import Comparison
from experiments.studies.length.measure import (
    AS_TRAINED,
    IN_SHORT_WINDOWS,
    SCALINGS,
    by_position,
    length_table,
    read_losses,
    window_means,
)
from experiments.studies.length.study import STUDY
from experiments.study import FigureEntry, TableEntry

LENGTH = "window length (tokens)"
METHOD_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#000000", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": (0, (5, 2)), "marker": "^"},
    {"color": "#0072B2", "linestyle": (0, (1, 1.2)), "marker": "s"},
    {"color": "#009E73", "linestyle": (0, (6, 2, 1, 2)), "marker": "D"},
)


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    measured = read_losses(root)
    if measured is None:
        return []
    directory = output / "figures"
    means = window_means(measured[measured["method"] != IN_SHORT_WINDOWS])
    added = by_position(measured)
    entries: list[FigureEntry | TableEntry] = [
        draw(directory, STUDY.figure("by-length"), by_length_figure, means, comparison, AS_TRAINED),
        draw(directory, STUDY.figure("stretched"), stretched_figure, means, comparison, AS_TRAINED, tuple(SCALINGS)),
    ]
    if not added.empty:
        entries.append(draw(directory, STUDY.figure("by-position"), by_position_figure, added, comparison))
    return [*entries, STUDY.table("by-length", length_table(means, comparison))]


def by_length_figure(means: pd.DataFrame, comparison: Comparison, method: str) -> Figure:
    """A panel per kernel, a line per position encoding."""
    groups = by_kernel(comparison.variants)
    figure, panels = _panels(len(groups), comparison, "test split. Thin: each seed. Thick: mean.")
    for axes, (kernel, variants) in zip(panels, groups.items(), strict=True):
        axes.set_title(label(kernel))
        for variant in variants:
            rows = means[(means["variant"] == variant.name) & (means["method"] == method)]
            _lines(axes, rows, "length", variant_style(variant), label(variant.name))
        _finish(axes, means["length"], comparison)
    return figure


def stretched_figure(means: pd.DataFrame, comparison: Comparison, as_trained: str, methods: tuple[str, ...]) -> Figure:
    """A panel per variant with RoPE, a line per way of stretching."""
    variants = [
        variant for variant in comparison.variants if (means[means["variant"] == variant.name]["method"].nunique() > 1)
    ]
    figure, panels = _panels(max(1, len(variants)), comparison, "test split. Thin: each seed. Thick: mean.")
    for axes, variant in zip(panels, variants, strict=False):
        axes.set_title(label(variant.name))
        mine = means[means["variant"] == variant.name]
        for look, method in zip(METHOD_STYLES, (as_trained, *methods), strict=True):
            _lines(axes, mine[mine["method"] == method], "length", look, method)
        _finish(axes, means["length"], comparison)
    return figure


def by_position_figure(added: pd.DataFrame, comparison: Comparison) -> Figure:
    """A panel per kernel; what the longest windows add against the middle of each range of positions."""
    groups = by_kernel(comparison.variants)
    figure, panels = _panels(len(groups), comparison, "test split. Thin: each seed. Thick: mean.")
    figure.supylabel("bits per byte minus those in windows\nof the training length (above 0: worse)", fontsize=10)
    for axes, (kernel, variants) in zip(panels, groups.items(), strict=True):
        axes.set_title(label(kernel))
        axes.axhline(0, color=MUTED, linewidth=1)
        for variant in variants:
            rows = added[added["variant"] == variant.name]
            middle = (rows["first"] + rows["last"] + 1) / 2
            rows = rows.assign(middle=middle)
            _lines(axes, rows, "middle", variant_style(variant), label(variant.name), quantity="added")
        _finish(axes, added["last"], comparison, "position in the window (tokens)")
    return figure


def _panels(count: int, comparison: Comparison, note: str) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(8.6, 2.8 * count + 0.5))
    panels = figure.subplots(count, 1, squeeze=False)[:, 0]
    figure.supylabel("bits per byte", fontsize=10)
    head(figure, comparison, note)
    return figure, list(panels)


def _lines(
    axes: Axes,
    rows: pd.DataFrame,
    horizontal: str,
    look: dict[str, Any],
    name: str,
    quantity: str = "bits_per_byte",
) -> None:
    if rows.empty:
        return
    seeds = [mine.set_index(horizontal)[quantity].sort_index() for _, mine in rows.groupby("seed")]
    seeds_and_mean(axes, seeds, seeds, look, label=name)


def _finish(axes: Axes, lengths: "pd.Series[int]", comparison: Comparison, name: str = LENGTH) -> None:
    context = comparison.config["context"]
    axes.set_xscale("log", base=2)
    axes.axvline(context, color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
    ticks = [context * 2**power for power in range(-4, 5) if context * 2.0**power <= lengths.max() + 1]
    shown = [tick for tick in ticks if tick >= lengths.min() and tick == int(tick)]
    axes.set_xticks(shown, [f"{int(tick):,}" for tick in shown])
    axes.minorticks_off()
    axes.set_xlabel(name)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), fontsize=9)
