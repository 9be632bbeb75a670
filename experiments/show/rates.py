"""The validation figure of every variant by learning rate, from the trials that its rate was chosen by."""

import math
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.records.schema import Comparison, VariantRecord
from experiments.show.draw import grid_of, head, legend_below
from experiments.show.style import label, legend_label, save_figure, variant_style
from experiments.study import FigureEntry
from experiments.train.tuning import figures_of

MARGIN = 0.08
"""of the vertical scale, beyond what has to be seen"""

Figures = dict[str, dict[float, list[float]]]
"""by variant and rate, those of the seeds"""


def draw_rates(root: Path, output: Path, comparison: Comparison) -> FigureEntry | None:
    """Save ``rates`` in ``output / "figures"``; None if no variant has a finished trial, or the grid was fixed."""
    if not comparison.rate_seeds:
        return None
    figures = {variant.name: _finite(figures_of(root, comparison, variant.name)) for variant in comparison.variants}
    if not any(figures.values()):
        return None
    objective = comparison.objective
    caption = (
        f"Validation {objective.quantity} of the trials ({objective.better} is better) by peak learning rate. Dots: "
        "seeds; lines: their means; ring: the rate that the variant is trained with. Rates at which a seed diverged "
        "are left out, and the vertical scale is that of each variant's best rate and its neighbours."
    )
    save_figure(partial(rates_figure, figures, comparison), output / "figures", "rates")
    return FigureEntry("rates", "Learning rates that were tried", caption)


def _finite(figures: dict[float, list[float]]) -> dict[float, list[float]]:
    return {rate: values for rate, values in figures.items() if values and all(map(math.isfinite, values))}


def rates_figure(figures: Figures, comparison: Comparison) -> Figure:
    """A panel for each kernel; ``figures`` are of the rates at which all trials that ended did not diverge."""
    tried = [variant for variant in comparison.variants if figures[variant.name]]
    kernels = list(dict.fromkeys(variant.kernel for variant in tried))
    columns = min(3, len(kernels))
    figure, grid = grid_of(-(-len(kernels) // columns), columns, (3.3, 3.2), (0.3, 0.6), 5, sharex=True, sharey=True)
    for axes in grid.flat[len(kernels) :]:
        axes.remove()
    ticks = sorted({rate for variant in tried for rate in figures[variant.name]})
    low, high = _vertical_range(figures, comparison)
    for kernel, axes in zip(kernels, grid.flat, strict=False):
        axes.set_title(label(kernel))
        for variant in (variant for variant in tried if variant.kernel == kernel):
            _draw_variant(axes, variant, figures[variant.name])
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:,.10g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("peak learning rate")
        axes.tick_params(axis="x", labelbottom=True, rotation=60)
        axes.set_ylim(low, high)
    legend_below(figure, figure.axes, 3)
    figure.supylabel(f"validation {comparison.objective.quantity}", fontsize=10)
    head(figure, comparison, "validation split of the trials of learning rates.")
    return figure


def _draw_variant(axes: Axes, variant: VariantRecord, figures: dict[float, list[float]]) -> None:
    look, means = variant_style(variant), _means(figures)
    text = f"{legend_label(variant.name)}{' (not tuned)' if variant.not_tuned else ''}"
    axes.plot(list(means), list(means.values()), label=text, **look, linewidth=1.6, markersize=5)
    dots = [(rate, value) for rate, values in figures.items() if len(values) > 1 for value in values]
    axes.plot([rate for rate, _ in dots], [value for _, value in dots], ".", color=look["color"], markersize=4)
    chosen = variant.settings.get("learning_rate")
    if chosen in means:
        ring = {"markerfacecolor": "none", "markeredgecolor": look["color"], "markersize": 12}
        axes.plot([chosen], [means[chosen]], "o", **ring)


def _means(figures: dict[float, list[float]]) -> dict[float, float]:
    return {rate: sum(values) / len(values) for rate, values in figures.items()}


def _vertical_range(figures: Figures, comparison: Comparison) -> tuple[float, float]:
    """Room for each variant's best rate and its neighbours: rates far too high would flatten all others."""
    best, seen = (min if comparison.objective.better == "lower" else max), list[float]()
    for of_variant in filter(None, figures.values()):
        means, rates = _means(of_variant), list(of_variant)
        place = rates.index(best(rates, key=means.__getitem__))
        seen += [value for rate in rates[max(0, place - 1) : place + 2] for value in of_variant[rate]]
    margin = MARGIN * (max(seen) - min(seen)) or 0.1
    return min(seen) - margin, max(seen) + margin
