"""The figures of the features study."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from experiments.analysis.statistics import estimate
from experiments.figures.panels import end_below_the_lowest, legend_below, marks_with_intervals
from experiments.figures.style import MUTED, draw, label, label_powers_of_ten
from experiments.records.schema import Comparison
from experiments.studies.features.measure import read_table
from experiments.studies.features.study import STUDY
from experiments.study import FigureEntry, TableEntry

STYLES: dict[str, dict[str, Any]] = {
    "positive": {"color": "#D55E00", "marker": "o"},
    "hyperbolic": {"color": "#CC79A7", "marker": "D"},
    "trigonometric": {"color": "#0072B2", "marker": "^"},
}
OFFSET = 1.09
"""marks of the same M are set apart by this factor, so that none hides another"""
NUM_FEATURES = "features M"
AS_ZEROS = "error of an estimate that is 0"
AS_ZEROS_STYLE: dict[str, Any] = {"color": MUTED, "linewidth": 1.2, "linestyle": (0, (4, 2))}


DERIVED_OUTPUT_ERROR: dict[Any, str] = {(0.5, "positive"): "2.7e-05", (0.5, "trigonometric"): "1e-05"}
"""what was worked out by others of us for this point; the paper prints no numbers"""


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    random, trained = read_table(root, "random"), read_table(root, "trained")
    directory = output / "figures"
    entries: list[FigureEntry | TableEntry] = []
    if random is not None:
        in_curves = random[random["part"] == "curves"]
        for head_dim in sorted(in_curves["head_dim"].unique()):
            rows = in_curves[in_curves["head_dim"] == head_dim]
            kernel = STUDY.figure("kernel-error", head_dim=head_dim, draws=rows["draw"].nunique())
            entries.append(draw(directory, kernel, kernel_figure, rows))
            entries.append(draw(directory, STUDY.figure("attention-error", head_dim=head_dim), attention_figure, rows))
        published = _published_point(random)
        if not published.empty:
            entries.append(STUDY.table("published", published))
    if trained is not None:
        entries.append(draw(directory, STUDY.figure("trained-error"), trained_figure, trained, comparison))
    return entries


def _published_point(random: pd.DataFrame) -> pd.DataFrame:
    """Output errors at the published width and number of features, as text; no rows if they were not measured."""
    point = random[random["part"] == "figure 4"]
    rows = []
    for (scale, estimator), values in point.groupby(["scale", "estimator"])["output_error"]:
        over_draws = estimate(values.tolist())
        interval = f" [{over_draws.low:.1e}, {over_draws.high:.1e}]" if over_draws.has_interval else ""
        expected = DERIVED_OUTPUT_ERROR.get((scale, estimator), "")
        rows.append((f"{scale:g}", estimator, f"{over_draws.mean:.1e}{interval}", str(over_draws.n), expected))
    return pd.DataFrame.from_records(rows, columns=["scale", "features", "output error", "draws", "expected"])


def kernel_figure(rows: pd.DataFrame) -> Figure:
    """Marks with intervals over draws and the expectation as lines: a column per scale, a row per kind of direction."""
    figure, panels = _panels(rows)
    for (directions, scale), axes in panels.items():
        shown = rows[(rows["directions"] == directions) & (rows["scale"] == scale)]
        for estimator in STYLES:
            mine = shown[shown["estimator"] == estimator].groupby("num_features")
            expected = mine["expected_kernel_error"].mean()
            _line(axes, estimator, expected.index, expected, linestyle="-", linewidth=1)
            _marks(axes, estimator, [(count, estimate(list(values))) for count, values in mine["kernel_error"]])
        if directions == "independent" and scale == rows["scale"].min():
            axes.plot([], [], color=MUTED, linewidth=1, label="expected of independent directions")
    _finish(figure, panels, "relative squared error of the kernel")
    return figure


def attention_figure(rows: pd.DataFrame) -> Figure:
    """Geometric means over draws: a column per scale, a row per kind of direction."""
    figure, panels = _panels(rows)
    for (directions, scale), axes in panels.items():
        shown = rows[(rows["directions"] == directions) & (rows["scale"] == scale)]
        axes.axhline(1, label=AS_ZEROS, **AS_ZEROS_STYLE)
        _geometric_means(axes, shown.assign(logarithm=np.log10(shown["attention_error"].clip(lower=1e-30))))
    _finish(figure, panels, "relative error of the attention matrix")
    return figure


def trained_figure(trained: pd.DataFrame, comparison: Comparison) -> Figure:
    """A column per variant, the error of the kernel above that of attention; filled marks: orthogonal directions."""
    names = [variant.name for variant in comparison.variants if variant.name in set(trained["variant"])]
    figure = Figure(figsize=(max(4.4 * len(names), 7), 7))
    grid = figure.subplots(2, len(names), sharex=True, sharey="row", squeeze=False)
    keys = ["estimator", "directions", "num_features"]
    for column, name in enumerate(names):
        rows = trained[trained["variant"] == name]
        grid[0, column].set_title(f"{label(name)}, scale {rows['input_scale'].mean():.2f}")
        for row, quantity in enumerate(("kernel", "attention")):
            axes = grid[row, column]
            by_seed: Any = rows.groupby([*keys, "seed"], as_index=False)[f"log10_{quantity}_error"].mean()
            by_seed = by_seed.rename(columns={f"log10_{quantity}_error": "logarithm"})
            for directions in ("orthogonal", "independent"):
                _geometric_means(axes, by_seed[by_seed["directions"] == directions], hollow=directions == "independent")
            axes.axhline(1, label=AS_ZEROS, **AS_ZEROS_STYLE)
            _scales(axes, sorted(trained["num_features"].unique()))
        grid[1, column].set_xlabel(NUM_FEATURES)
    grid[0, 0].set_ylabel("relative squared error of the kernel")
    grid[1, 0].set_ylabel("relative error of the attention matrix")
    legend_below(figure, [grid[0, 0]], 3)
    return figure


def _panels(rows: pd.DataFrame) -> tuple[Figure, dict[tuple[str, float], Axes]]:
    """Axes by (directions, scale), those of a column with the same vertical axis."""
    scales = sorted(rows["scale"].unique())
    kinds = [kind for kind in ("independent", "orthogonal") if kind in set(rows["directions"])]
    figure = Figure(figsize=(3.5 * len(scales) + 0.6, 3.3 * len(kinds) + 0.7))
    grid = figure.subplots(len(kinds), len(scales), sharex=True, sharey="col", squeeze=False)
    panels = {(kind, scale): grid[i, j] for i, kind in enumerate(kinds) for j, scale in enumerate(scales)}
    for (kind, scale), axes in panels.items():
        axes.set_title(f"{kind}, scale {scale:g}")
        _scales(axes, sorted(rows["num_features"].unique()))
    return figure, panels


def _scales(axes: Axes, num_features: list[int]) -> None:
    axes.set(xscale="log", yscale="log")
    ticks = num_features[::2] if len(num_features) > 5 else num_features
    axes.set_xticks(ticks, [str(count) for count in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    label_powers_of_ten(axes)


def _geometric_means(axes: Axes, rows: pd.DataFrame, hollow: bool = False) -> None:
    """Marks at ten to the mean of the column ``logarithm``, joined by a line."""
    for estimator in STYLES:
        groups = rows[rows["estimator"] == estimator].groupby("num_features")["logarithm"]
        means = groups.mean()
        _line(axes, estimator, means.index, 10**means, linestyle="--" if hollow else "-", linewidth=0.9)
        points = []
        for count, values in groups:
            over = estimate(list(values))
            points.append((count, over))
        _marks(axes, estimator, points, logarithms=True, hollow=hollow)


def _line(axes: Axes, estimator: str, num_features: Any, values: Any, **kwargs: Any) -> None:
    place = OFFSET ** (list(STYLES).index(estimator) - 1)
    axes.plot(place * np.asarray(num_features, dtype=float), values, color=STYLES[estimator]["color"], **kwargs)


def _marks(axes: Axes, estimator: str, points: list[Any], *, logarithms: bool = False, hollow: bool = False) -> None:
    """Means with their intervals, from (number of features, Estimate) pairs."""
    place = OFFSET ** (list(STYLES).index(estimator) - 1)
    look = STYLES[estimator] | ({"markerfacecolor": "white"} if hollow else {})
    look |= {"label": f"{estimator}, independent" if hollow else estimator, "elinewidth": 1}
    scale = (lambda x: 10**x) if logarithms else (lambda x: x)
    estimates = [over for _, over in points]
    marks_with_intervals(axes, [count * place for count, _ in points], estimates, scale, **look)


def _finish(figure: Figure, panels: dict[tuple[str, float], Axes], measured: str) -> None:
    scales, last = [scale for _, scale in panels], list(panels)[-1][0]
    for (kind, scale), axes in panels.items():
        if scale == min(scales):
            axes.set_ylabel(measured)
        if kind == last:
            axes.set_xlabel(NUM_FEATURES)
    for scale in set(scales):
        column = [axes for (_, of_axes), axes in panels.items() if of_axes == scale]
        end_below_the_lowest(column)
    legend_below(figure, [next(iter(panels.values()))], 4)
