"""What figures have in common: their panels, the line at their head, legends, means of seeds, intervals."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from experiments.figures.style import MUTED, label, legend_label, variant_style
from experiments.records.schema import Comparison, VariantRecord

Inches = tuple[float, float]
Group = TypeVar("Group")
LETTER = 0.066
"""inches: a letter of the line at the head"""
LINE = 0.17
"""inches: a line of a legend"""
ROOMY = 6
"""lines of a legend beneath a panel for which a figure has room"""


def grid_of(
    rows: int,
    columns: int,
    size: Inches,
    margin: Inches = (0, 0),
    least: float = 0,
    sharex: Any = False,
    sharey: Any = False,
) -> tuple[Figure, Any]:
    """A figure, ``least`` inches wide or wider, and its array (rows, columns) of panels of about ``size`` each."""
    width, height = (each * number + more for each, number, more in zip(size, (columns, rows), margin, strict=True))
    figure = Figure(figsize=(max(width, least), height))
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)


def panels_of(
    groups: Mapping[str, Group], most: int, size: Inches, margin: Inches = (0, 0), least: float = 0, **options: Any
) -> tuple[Figure, list[tuple[Axes, Group]]]:
    """The same with a panel a group, its name above it, in rows of ``most`` or fewer: each panel and its group."""
    rows = -(-len(groups) // most)
    figure, grid = grid_of(rows, -(-len(groups) // rows), size, margin, least, **options)
    for axes in grid.flat[len(groups) :]:
        axes.remove()
    panels = list(zip(grid.flat, groups.values(), strict=False))
    for (axes, _), name in zip(panels, groups, strict=True):
        axes.set_title(label(name))
    return figure, panels


def head(figure: Figure, comparison: Comparison, note: str) -> None:
    """Say above all panels what the data are, and ``note``."""
    names = label(", ".join(data.called for data in comparison.data), longest=60)
    lines = [fill(line, int(figure.get_figwidth() / LETTER)) for line in f"{names}, {note}".split("\n")]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9, color=MUTED)


def name_vertical(figure: Figure, quantity: str) -> None:
    """Say what all vertical axes show."""
    figure.supylabel(quantity, fontsize=10)


def legend_below(figure: Figure, panels: Iterable[Axes], columns: int, **options: Any) -> None:
    """One legend below all panels, of everything that any of them labels; none if nothing has a label."""
    found = {text: handle for axes in panels for text, handle in _labelled(axes).items()}
    if not found:
        return
    ncols = min(columns, len(found))
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=ncols, **options)


def legends_beneath(figure: Figure, panels: Iterable[Axes], **options: Any) -> None:
    """Beneath each panel a legend of what not all of them label, and one of what all do below the figure.

    Of panels with the same lines only the last has a legend. The axes have to be labelled.
    """
    shown = [(axes, _labelled(axes)) for axes in panels]
    common = set.intersection(*(set(found) for _, found in shown)) if len(shown) > 1 else set()
    longest = max(sum(text.count("\n") + 1 for text in found.keys() - common) for _, found in shown)
    # Else panels shrink, and to nothing in the end.
    figure.set_figheight(figure.get_figheight() + LINE * max(0, longest - ROOMY))
    for place, (axes, found) in enumerate(shown):
        own = [handle for text, handle in found.items() if text not in common]
        if own and found.keys() not in [later.keys() for _, later in shown[place + 1 :]]:
            legend_beneath(axes, own, **options)
    if common:
        handles = [handle for text, handle in shown[0][1].items() if text in common]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, **options)


def _labelled(axes: Axes) -> dict[str, Any]:
    handles, texts = axes.get_legend_handles_labels()
    return dict(zip(texts, handles, strict=True))


def legend_beneath(axes: Axes, handles: Sequence[Any], **options: Any) -> None:
    """A legend below a panel and what is written at its axis."""
    written = axes.xaxis.get_tightbbox()
    depth = (axes.bbox.y0 - written.y0 if written else 0) / axes.figure.dpi
    place = axes.transAxes + ScaledTranslation(0, -depth, axes.figure.dpi_scale_trans)
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=place, **options)


def lines_of_variants(axes: Axes, table: pd.DataFrame, variants: Iterable[VariantRecord], x: str, y: str) -> None:
    """``lines_by_seed`` for each of the variants."""
    for variant in variants:
        mine = table[table["variant"] == variant.name]
        lines_by_seed(axes, mine, x, y, variant_style(variant), legend_label(variant.name))


def lines_by_seed(
    axes: Axes,
    rows: pd.DataFrame,
    x: str,
    y: str,
    look: dict[str, Any],
    text: str,
    finished: set[int] | None = None,
    marks: int = 0,
    first_mark: int = 0,
) -> None:
    """A thin line for each seed in a table, if there are several, and the mean of those that are ``finished``, or all.

    The mean, of the places at which all of these have a value, has that many ``marks`` along it, or all. Without rows
    there is nothing, or a line without points for the legend if it is given which seeds are finished.
    """
    by_seed = {seed: mine.set_index(x)[y].sort_index() for seed, mine in rows.groupby("seed")}
    if not by_seed and finished is None:
        return
    whole = [curve for seed, curve in by_seed.items() if finished is None or seed in finished]
    for curve in by_seed.values() if len(by_seed) > 1 or not whole else []:
        axes.plot(curve.index, curve, color=look["color"], linewidth=0.6)
    mean = pd.concat(whole, axis=1).dropna().mean(axis=1) if whole else pd.Series(dtype=float)
    every = max(1, min(map(len, whole), default=0) // marks) if marks else 1
    usual = {"linewidth": 1.8, "markersize": 5, "markevery": (first_mark % every, every)}
    axes.plot(mean.index, mean, label=text, **{**usual, **look})


def marks_with_intervals(
    axes: Axes, places: Any, found: pd.DataFrame, scale: Callable[[Any], Any] = lambda x: x, **look: Any
) -> None:
    """Marks at the means with their intervals (``estimates``), where there are some; all as ``scale`` makes of them."""
    mean, low, high = (scale(found[end].to_numpy(float)) for end in ("mean", "low", "high"))
    error = (np.nan_to_num(mean - low), np.nan_to_num(high - mean))
    axes.errorbar(places, mean, yerr=error, **{"linestyle": "none", "markersize": 4.5, **look})


def doubling_axis(axes: Axes, ticks: Sequence[float], name: str) -> None:
    """A logarithmic horizontal axis of numbers of tokens, with these ticks and no others."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,.10g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(name)


def mean_with_interval(axes: Axes, height: float, row: Any, marker: str, size: float, colour: str) -> None:
    """A mark at a row's mean, with its interval, if it has one, as a horizontal line."""
    if pd.notna(row["low"]):
        reach = [[row["mean"] - row["low"]], [row["high"] - row["mean"]]]
        axes.errorbar(row["mean"], height, xerr=reach, color=colour, capsize=3.5, linewidth=1.5)
    axes.plot([row["mean"]], [height], marker, color=colour, markersize=size)


def end_below_the_lowest(column: Sequence[Axes]) -> None:
    """End a logarithmic axis below what is drawn: an interval down to zero would stretch it without end."""
    drawn = np.concatenate([line.get_ydata() for axes in column for line in axes.get_lines()]).astype(float)
    column[0].set_ylim(bottom=drawn[drawn > 0].min() / 2)
