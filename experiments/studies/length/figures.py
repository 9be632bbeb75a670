"""The figures of the length study."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures.panels import head, lines_by_seed
from experiments.figures.settings import LOOKS
from experiments.figures.style import MUTED, by_kernel, draw, label, variant_style
from experiments.records.schema import Comparison
from experiments.studies.length.measure import (
    AS_TRAINED,
    IN_SHORT_WINDOWS,
    LOSSES,
    SCALINGS,
    by_position,
    length_table,
    window_means,
)
from experiments.study import FigureEntry, TableEntry, read_study

STUDY = read_study(Path(__file__).parent)
LENGTH = "window length (tokens)"


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    measured = LOSSES.read(root)
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
    figure, panels = _panels(len(groups), comparison)
    for axes, (kernel, variants) in zip(panels, groups.items(), strict=True):
        axes.set_title(label(kernel))
        for variant in variants:
            rows = means[(means["variant"] == variant.name) & (means["method"] == method)]
            lines_by_seed(axes, rows, "length", "bits_per_byte", variant_style(variant), label(variant.name))
        _finish(axes, means["length"], comparison)
    return figure


def stretched_figure(means: pd.DataFrame, comparison: Comparison, as_trained: str, methods: tuple[str, ...]) -> Figure:
    """A panel per variant with RoPE, a line per way of stretching."""
    number_of_methods = means.groupby("variant")["method"].nunique()
    names = [variant.name for variant in comparison.variants if number_of_methods.get(variant.name, 0) > 1]
    figure, panels = _panels(max(1, len(names)), comparison)
    for axes, name in zip(panels, names, strict=False):
        axes.set_title(label(name))
        for look, method in zip(LOOKS, (as_trained, *methods), strict=False):
            rows = means[(means["variant"] == name) & (means["method"] == method)]
            lines_by_seed(axes, rows, "length", "bits_per_byte", look, method)
        _finish(axes, means["length"], comparison)
    return figure


def by_position_figure(added: pd.DataFrame, comparison: Comparison) -> Figure:
    """A panel per kernel; what the longest windows add against the middle of each range of positions."""
    groups = by_kernel(comparison.variants)
    figure, panels = _panels(len(groups), comparison)
    figure.supylabel("bits per byte minus those in windows\nof the training length (above 0: worse)", fontsize=10)
    added = added.assign(middle=(added["first"] + added["last"] + 1) / 2)
    for axes, (kernel, variants) in zip(panels, groups.items(), strict=True):
        axes.set_title(label(kernel))
        axes.axhline(0, color=MUTED, linewidth=1)
        for variant in variants:
            rows = added[added["variant"] == variant.name]
            lines_by_seed(axes, rows, "middle", "added", variant_style(variant), label(variant.name))
        _finish(axes, added["last"], comparison, "position in the window (tokens)")
    return figure


def _panels(count: int, comparison: Comparison) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(8.6, 2.8 * count + 0.5))
    panels = figure.subplots(count, 1, squeeze=False)[:, 0]
    figure.supylabel("bits per byte", fontsize=10)
    head(figure, comparison, "test split. Thin: each seed. Thick: mean.")
    return figure, list(panels)


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
