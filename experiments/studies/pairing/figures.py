"""The figures of the pairing study."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis.statistics import estimates, finished_values
from experiments.figures.panels import end_below_the_lowest, grid_of, legend_below, marks_with_intervals, name_vertical
from experiments.figures.settings import loss_entries
from experiments.figures.style import MUTED, draw, label_powers_of_ten
from experiments.records.schema import Comparison
from experiments.studies.pairing.measure import EQUAL_DRAWS, MAPS, PAIRED, PLAIN, SHOWN_FEATURES, VARIANCE
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)
STYLES: dict[str, dict[str, Any]] = {
    PLAIN: {"color": "#d04a02", "marker": "o"},
    PAIRED: {"color": "#0072B2", "marker": "^"},
    EQUAL_DRAWS: {"color": "#8a6a00", "marker": "s"},
}


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    directory = output / "figures"
    values = finished_values(root, comparison, curves)
    entries = loss_entries(STUDY, directory, values, summary, comparison, curves)
    variance = VARIANCE.read(root)
    if variance is not None:
        entries.append(draw(directory, STUDY.figure("variance"), variance_figure, variance, SHOWN_FEATURES))
    return entries


def variance_figure(table: pd.DataFrame, num_features: int) -> Figure:
    """Variance by distance for one M, a row per kind of directions and a column per scale.

    Marks are measured, with intervals over draws; lines are expected over independent draws.
    """
    table = table[table["num_features"] == num_features]
    scales, kinds = sorted(table["scale"].unique()), list(table["directions"].unique())
    figure, grid = grid_of(len(kinds), len(scales), (3.5, 2.7), (0.6, 1.2), sharex=True, sharey="col")
    for row, directions in zip(grid, kinds, strict=True):
        for axes, scale in zip(row, scales, strict=True):
            _variance_panel(axes, table[(table["scale"] == scale) & (table["directions"] == directions)])
            axes.set_title(f"{directions} directions, scale {scale:g}")
    for column in grid.T:
        end_below_the_lowest(column)
        column[-1].set_xlabel("distance Δ (tokens)")
    name_vertical(figure, "variance of rotated score / kernel (ratio)")
    grid[0][0].plot([], [], color=MUTED, linewidth=1, label="expected over independent draws")
    legend_below(figure, [grid[0][0]], 2)
    return figure


def _variance_panel(axes: Axes, table: pd.DataFrame) -> None:
    for index, (name, text) in enumerate(MAPS.items()):
        mine = table[table["map"] == name]
        found = estimates(mine, "distance", "squared_error")
        # By rank: what matters is which frequencies have turned.
        places = np.arange(len(found)) + 0.16 * (index - 1)
        axes.plot(places, mine.groupby("distance")["expected"].mean(), color=STYLES[name]["color"], linewidth=1)
        marks_with_intervals(axes, places, found, label=text, **STYLES[name])
    axes.set_yscale("log")
    label_powers_of_ten(axes)
    distances = sorted(table["distance"].unique())
    axes.set_xticks(range(len(distances)), [str(distance) for distance in distances])
