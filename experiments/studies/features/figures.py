"""The figures of the features study."""

import itertools
from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from experiments.figures.panels import end_below_the_lowest, grid_of, legend_below, marks_with_intervals
from experiments.figures.style import MUTED, draw, label, label_powers_of_ten
from experiments.judge.statistics import estimates
from experiments.records.schema import Comparison
from experiments.studies.features.measure import RANDOM, TRAINED
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)
STYLES: dict[str, dict[str, Any]] = {
    "positive": {"color": "#d04a02", "marker": "o"},
    "hyperbolic": {"color": "#b8458b", "marker": "D"},
    "trigonometric": {"color": "#0072B2", "marker": "^"},
}
OFFSET = 1.09
"""marks of the same M are set apart by this factor, so that none hides another"""
NUM_FEATURES = "features M"
AS_ZEROS = "error of an estimate that is 0"
AS_ZEROS_STYLE: dict[str, Any] = {"color": MUTED, "linewidth": 1.2, "linestyle": (0, (4, 2))}
DERIVED_OUTPUT_ERROR: dict[Any, str] = {(0.5, "positive"): "2.7e-05", (0.5, "trigonometric"): "1e-05"}
"""what was worked out by others of us for this point; the paper prints no numbers"""


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    random, trained = RANDOM.read(root), TRAINED.read(root)
    directory = output / "figures"
    entries: Entries = []
    if random is not None:
        for head_dim, rows in random[random["part"] == "curves"].groupby("head_dim"):
            kernel = STUDY.figure("kernel-error", head_dim=head_dim, draws=rows["draw"].nunique())
            entries.append(draw(directory, kernel, kernel_figure, rows))
            entries.append(draw(directory, STUDY.figure("attention-error", head_dim=head_dim), attention_figure, rows))
        published = random[random["part"] == "figure 4"]
        if not published.empty:
            entries.append(STUDY.table("published", _published_point(published)))
    if trained is not None:
        entries.append(draw(directory, STUDY.figure("trained-error"), trained_figure, trained, comparison))
    return entries


def _published_point(rows: pd.DataFrame) -> pd.DataFrame:
    """Output errors at the published width and number of features, as text."""
    cells = []
    found: Any = estimates(rows, ["scale", "estimator"], "output_error").reset_index()
    for row in found.itertuples():
        interval = "" if isnan(row.low) else f" [{row.low:.1e}, {row.high:.1e}]"
        expected = DERIVED_OUTPUT_ERROR.get((row.scale, row.estimator), "")
        cells.append((f"{row.scale:g}", row.estimator, f"{row.mean:.1e}{interval}", f"{row.n:.0f}", expected))
    return pd.DataFrame(cells, columns=["scale", "features", "output error", "draws", "expected"])


def kernel_figure(rows: pd.DataFrame) -> Figure:
    """Marks with intervals over draws and the expectation as lines: a column per scale, a row per kind of direction."""
    figure, panels = _panels(rows, "relative squared error of the kernel")
    for place, (axes, shown) in panels.items():
        for estimator in STYLES:
            mine = shown[shown["estimator"] == estimator]
            expected = mine.groupby("num_features")["expected_kernel_error"].mean()
            _line(axes, estimator, expected, linestyle="-", linewidth=1)
            _marks(axes, estimator, estimates(mine, "num_features", "kernel_error"))
        if place == ("independent", rows["scale"].min()):
            axes.plot([], [], color=MUTED, linewidth=1, label="expected of independent directions")
    return _finished(figure, panels)


def attention_figure(rows: pd.DataFrame) -> Figure:
    """Geometric means over draws: a column per scale, a row per kind of direction."""
    figure, panels = _panels(rows, "relative error of the attention matrix")
    for axes, shown in panels.values():
        axes.axhline(1, label=AS_ZEROS, **AS_ZEROS_STYLE)
        _geometric_means(axes, shown.assign(logarithm=np.log10(shown["attention_error"].clip(lower=1e-30))))
    return _finished(figure, panels)


def trained_figure(trained: pd.DataFrame, comparison: Comparison) -> Figure:
    """A column per variant, the error of the kernel above that of attention; filled marks: orthogonal directions."""
    names = [variant.name for variant in comparison.variants if variant.name in set(trained["variant"])]
    figure, grid = grid_of(2, len(names), (4.4, 2.0), (0, 0.75), 7, sharex=True, sharey="row")
    keys = ["estimator", "directions", "num_features"]
    for column, name in enumerate(names):
        rows = trained[trained["variant"] == name]
        grid[0, column].set_title(f"{label(name)}, scale {rows['input_scale'].mean():.2f}")
        for row, quantity in enumerate(("kernel", "attention")):
            axes = grid[row, column]
            by_seed = rows.groupby([*keys, "seed"])[f"log10_{quantity}_error"].mean().reset_index(name="logarithm")
            for directions in ("orthogonal", "independent"):
                _geometric_means(axes, by_seed[by_seed["directions"] == directions], hollow=directions == "independent")
            axes.axhline(1, label=AS_ZEROS, **AS_ZEROS_STYLE)
            _scales(axes, sorted(trained["num_features"].unique()))
        grid[1, column].set_xlabel(NUM_FEATURES)
    grid[0, 0].set_ylabel("relative squared\nerror of the kernel")
    grid[1, 0].set_ylabel("relative error of\nthe attention matrix")
    legend_below(figure, [grid[0, 0]], 3)
    return figure


Panels = dict[tuple[str, float], tuple[Axes, pd.DataFrame]]


def _panels(rows: pd.DataFrame, measured: str) -> tuple[Figure, Panels]:
    """Axes and their rows by (directions, scale); those of a column have the same vertical axis."""
    scales = sorted(rows["scale"].unique())
    kinds = [kind for kind in ("independent", "orthogonal") if kind in set(rows["directions"])]
    figure, grid = grid_of(len(kinds), len(scales), (3.5, 3.3), (0.6, 0.7), sharex=True, sharey="col")
    panels = {}
    for axes, (kind, scale) in zip(grid.flat, itertools.product(kinds, scales), strict=True):
        axes.set_title(f"{kind}, scale {scale:g}")
        _scales(axes, sorted(rows["num_features"].unique()))
        panels[kind, scale] = axes, rows[(rows["directions"] == kind) & (rows["scale"] == scale)]
    for axes in grid[:, 0]:
        axes.set_ylabel(measured)
    for axes in grid[-1]:
        axes.set_xlabel(NUM_FEATURES)
    return figure, panels


def _finished(figure: Figure, panels: Panels) -> Figure:
    for scale in {scale for _, scale in panels}:
        end_below_the_lowest([axes for place, (axes, _) in panels.items() if place[1] == scale])
    legend_below(figure, [next(iter(panels.values()))[0]], 4)
    return figure


def _scales(axes: Axes, num_features: list[int]) -> None:
    axes.set(xscale="log", yscale="log")
    ticks = num_features[::2] if len(num_features) > 5 else num_features
    axes.set_xticks(ticks, [str(count) for count in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    label_powers_of_ten(axes)


def _geometric_means(axes: Axes, rows: pd.DataFrame, hollow: bool = False) -> None:
    """Marks at ten to the mean of the column ``logarithm``, joined by a line."""
    for estimator in STYLES:
        found = estimates(rows[rows["estimator"] == estimator], "num_features", "logarithm")
        _line(axes, estimator, 10 ** found["mean"], linestyle="--" if hollow else "-", linewidth=0.9)
        _marks(axes, estimator, found, lambda logarithm: 10**logarithm, hollow)


def _places(estimator: str, num_features: Any) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return OFFSET ** (list(STYLES).index(estimator) - 1) * np.asarray(num_features, dtype=float)


def _line(axes: Axes, estimator: str, values: "pd.Series[float]", **look: Any) -> None:
    axes.plot(_places(estimator, values.index), values, color=STYLES[estimator]["color"], **look)


def _marks(
    axes: Axes, estimator: str, found: pd.DataFrame, scale: Callable[[Any], Any] = lambda x: x, hollow: bool = False
) -> None:
    look = STYLES[estimator] | ({"markerfacecolor": "white"} if hollow else {})
    look |= {"label": f"{estimator}, independent" if hollow else estimator, "elinewidth": 1}
    marks_with_intervals(axes, _places(estimator, found.index), found, scale, **look)
