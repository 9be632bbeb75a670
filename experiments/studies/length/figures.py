"""The figures of the length study."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures import panels
from experiments.figures.settings import LOOKS
from experiments.figures.style import MUTED, by_kernel, draw
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
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)
LENGTH, POSITION = "window length (tokens)", "position in the window (tokens)"
LOSS = "bits per byte"
ADDED = "bits per byte minus those in windows\nof the training length (above 0: worse)"


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    measured = LOSSES.read(root)
    if measured is None:
        return []
    directory = output / "figures"
    means = window_means(measured[measured["method"] != IN_SHORT_WINDOWS])
    added = by_position(measured)
    entries: Entries = [
        draw(directory, STUDY.figure("by-length"), by_length_figure, means, comparison),
        draw(directory, STUDY.figure("stretched"), stretched_figure, means, comparison),
    ]
    if not added.empty:
        entries.append(draw(directory, STUDY.figure("by-position"), by_position_figure, added, comparison))
    return [*entries, STUDY.table("by-length", length_table(means, comparison))]


def by_length_figure(means: pd.DataFrame, comparison: Comparison) -> Figure:
    """A panel per kernel, a line per position encoding, of models as trained."""
    figure, shown = _panels(by_kernel(comparison.variants), comparison, LOSS)
    for axes, variants in shown:
        panels.lines_of_variants(axes, means[means["method"] == AS_TRAINED], variants, "length", "bits_per_byte")
        _finish(axes, means["length"], comparison, LENGTH)
    panels.legends_beneath(figure, figure.axes)
    return figure


def stretched_figure(means: pd.DataFrame, comparison: Comparison) -> Figure:
    """A panel per variant with RoPE, a line per way of stretching."""
    groups = {variant.name: means[means["variant"] == variant.name] for variant in comparison.variants}
    groups = {name: rows for name, rows in groups.items() if rows["method"].nunique() > 1}
    figure, shown = _panels(groups or {"": means[:0]}, comparison, LOSS)
    for axes, rows in shown:
        for look, method in zip(LOOKS, (AS_TRAINED, *SCALINGS), strict=False):
            panels.lines_by_seed(axes, rows[rows["method"] == method], "length", "bits_per_byte", look, method)
        _finish(axes, means["length"], comparison, LENGTH)
    panels.legends_beneath(figure, figure.axes)
    return figure


def by_position_figure(added: pd.DataFrame, comparison: Comparison) -> Figure:
    """A panel per kernel; what the longest windows add against the middle of each range of positions."""
    figure, shown = _panels(by_kernel(comparison.variants), comparison, ADDED)
    added = added.assign(middle=(added["first"] + added["last"] + 1) / 2)
    for axes, variants in shown:
        axes.axhline(0, color=MUTED, linewidth=1)
        panels.lines_of_variants(axes, added, variants, "middle", "added")
        _finish(axes, added["last"], comparison, POSITION)
    panels.legends_beneath(figure, figure.axes)
    return figure


def _panels(groups: dict[str, Any], comparison: Comparison, quantity: str) -> tuple[Figure, list[tuple[Axes, Any]]]:
    figure, shown = panels.panels_of(groups, 3, (3.65, 4.1), (0.3, 0.3), 6, sharey=True)
    panels.name_vertical(figure, quantity)
    panels.head(figure, comparison, "test split. Thin: each seed. Thick: mean.")
    return figure, shown


def _finish(axes: Axes, lengths: "pd.Series[int]", comparison: Comparison, name: str) -> None:
    context = comparison.config["context"]
    ticks = [context * 2.0**power for power in range(-4, 5)]
    shown = [tick for tick in ticks if lengths.min() <= tick <= lengths.max() + 1 and tick == int(tick)]
    panels.doubling_axis(axes, shown, name)
    axes.axvline(context, color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
