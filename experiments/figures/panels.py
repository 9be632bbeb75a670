"""What the figures of the studies have in common: the line at their head, legends, means of seeds, intervals."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures.style import MUTED, label
from experiments.records.schema import Comparison


def data_names(comparison: Comparison) -> str:
    return label(", ".join(data.name for data in comparison.data), longest=60)


def head(figure: Figure, comparison: Comparison, note: str) -> None:
    """Say above all panels what the data are, and ``note``."""
    figure.suptitle(f"{data_names(comparison)}, {note}", x=0.01, ha="left", fontsize=9, color=MUTED)


def legend_below(figure: Figure, panels: Iterable[Axes], columns: int, **options: Any) -> None:
    """One legend below all panels, of everything that any of them labels."""
    found = {text: handle for axes in panels for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    ncols = min(columns, len(found))
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=ncols, **options)


def panels_for(figure: Figure, rows: int, columns: int, number: int, **options: Any) -> list[Axes]:
    """The first ``number`` panels of a grid; there are no others."""
    grid = figure.subplots(rows, columns, squeeze=False, **options).ravel()
    for axes in grid[number:]:
        axes.remove()
    return list(grid[:number])


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
    """``seeds_and_mean`` of the seeds in a table; the mean is that of the ``finished``, or of all, with that many
    ``marks`` along it, or all; nothing if there are no rows and all seeds count.
    """
    by_seed = {seed: mine.set_index(x)[y].sort_index() for seed, mine in rows.groupby("seed")}
    if not by_seed and finished is None:
        return
    whole = [curve for seed, curve in by_seed.items() if finished is None or seed in finished]
    every = max(1, min(map(len, whole), default=0) // marks) if marks else 1
    seeds_and_mean(axes, list(by_seed.values()), whole, look, label=text, markevery=(first_mark % every, every))


def seeds_and_mean(
    axes: Axes,
    seeds: Sequence["pd.Series[float]"],
    mean_of: Sequence["pd.Series[float]"],
    look: dict[str, Any],
    **mean_look: Any,
) -> None:
    """A thin line for each of ``seeds``, if there are several, and the mean of some where all of them have a value."""
    for curve in seeds if len(seeds) > 1 or not len(mean_of) else []:
        axes.plot(curve.index, curve, color=look["color"], linewidth=0.7, alpha=0.4)
    mean = pd.concat(mean_of, axis=1).dropna().mean(axis=1) if len(mean_of) else pd.Series(dtype=float)
    axes.plot(mean.index, mean, **{"linewidth": 1.8, "markersize": 5, **look, **mean_look})


def marks_with_intervals(
    axes: Axes, places: Any, estimates: Sequence[Any], scale: Callable[[Any], Any] = lambda x: x, **look: Any
) -> None:
    """Marks at the means with their intervals, where there are some; all of them as ``scale`` makes of them."""
    mean, low, high = (
        scale(np.array([getattr(each, end) for each in estimates], dtype=float)) for end in ("mean", "low", "high")
    )
    error = (np.nan_to_num(mean - low), np.nan_to_num(high - mean))
    axes.errorbar(places, mean, yerr=error, linestyle="none", markersize=4.5, **look)


def end_below_the_lowest(column: Sequence[Axes]) -> None:
    """End a logarithmic axis below what is drawn: an interval down to zero would stretch it without end."""
    drawn = np.concatenate([line.get_ydata() for axes in column for line in axes.get_lines()]).astype(float)
    column[0].set_ylim(bottom=drawn[drawn > 0].min() / 2)
