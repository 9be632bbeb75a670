"""The figures and tables of the decay study."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures import panels
from experiments.figures.settings import COLUMNS, by_base, looks_by_setting, setting_label
from experiments.figures.style import (
    MUTED,
    by_kernel,
    draw,
    label,
    label_powers_of_ten,
    legend_label,
    variant_style,
)
from experiments.records.schema import Comparison, VariantRecord
from experiments.show.keys import shown_of
from experiments.studies.decay.rows import EXPECTED_BOUND as EXPECTED_BOUND
from experiments.studies.decay.rows import uniform_weight
from experiments.study import Entries, FigureEntry, read_study
from linear_rope.diagnostics import expected_rope_mask

STUDY = read_study(Path(__file__).parent)
BINS = 24
DISTANCE = "distance Δ (tokens)"


def attention_figures(directory: Path, comparison: Comparison, attention: pd.DataFrame | None) -> Entries:
    """The figures of attention.csv, if there is one."""
    return [
        draw(directory, _entry(stem), make, attention, comparison)
        for stem, make in (("attention", attention_figure), ("attention-layers", layers_figure))
        if attention is not None
    ]


def _entry(stem: str) -> FigureEntry:
    (found,) = (figure for figure in shown_of(STUDY).figures if figure.stem == stem)
    return FigureEntry(stem, found.title, STUDY.said(found.caption))


def bound_figure(bound: pd.DataFrame, expected: dict[int, str]) -> Figure:
    """The bound against distance, on linear axes as published, and the values it is checked against."""
    figure, ((axes,),) = panels.grid_of(1, 1, (7, 4))
    axes.plot(bound["distance"], bound["bound"], color="black", linewidth=1.2, label="computed here")
    _rings(axes, expected, "what Figure 2 of RoFormer must show", color="#D55E00", markersize=7, clip_on=False)
    axes.set(xlabel=DISTANCE, ylabel="bound, (2/d)·Σ|Sᵢ| (no unit)")
    axes.set(xlim=(0, max(bound["distance"].max(), 1)), ylim=(0, None))
    axes.legend(loc="upper right", frameon=False)
    return figure


def mask_figure(mask: pd.DataFrame) -> Figure:
    """c(Δ) as lines, means over draws as marks with intervals, a panel per number of features."""
    groups: dict[str, Any] = {f"M = {number} features": (number, rows) for number, rows in mask.groupby("num_features")}
    figure, shown = panels.panels_of(groups, len(groups), (3.4, 3.8), (0.8, 0), sharey=True)
    for axes, (num_features, rows) in shown:
        axes.axhline(0, color=MUTED, linewidth=0.8)
        _expected_line(axes, rows["distance"].max(), num_features, "expected, c(Δ)")
        _marks_by_distance(axes, rows, "mean of real draws")
    figure.axes[0].set_ylabel("rotated score / softmax kernel (ratio)")
    figure.axes[-1].legend(loc="upper right", frameon=False)
    return figure


def _rings(axes: Axes, values: dict[int, str], text: str, color: str, **look: Any) -> None:
    heights = [float(value) for value in values.values()]
    axes.plot(list(values), heights, "o", markerfacecolor="none", markeredgecolor=color, label=text, **look)


def _expected_line(axes: Axes, furthest: int, width: int, text: str) -> None:
    """c(Δ) at many distances, or all where they are few."""
    every = torch.linspace(0, furthest, 2049, dtype=torch.float64).round().long().unique()
    axes.plot(every.numpy(), expected_rope_mask(every, width).numpy(), color="black", linewidth=0.9, label=text)


def _marks_by_distance(axes: Axes, found: pd.DataFrame, text: str) -> None:
    look: dict[str, Any] = {"marker": "o", "color": "#D55E00", "markersize": 4, "capsize": 2.5}
    panels.marks_with_intervals(axes, found["distance"], found, label=text, **look)
    _distance_axis(axes, (0, 1, 10, 100, 1000))
    axes.set_xlabel(DISTANCE)


def attention_figure(attention: pd.DataFrame, comparison: Comparison) -> Figure:
    """A column per kernel: absolute weights on a logarithmic axis, and signed weights."""
    groups, uniform = by_kernel(comparison.variants), uniform_weight(attention, comparison)
    figure, grid = panels.grid_of(2, len(groups), (2.75, 1.75), (0.3, 1.3), 7.5, sharex=True, sharey="row")
    for (upper, lower), (kernel, variants) in zip(grid.T, groups.items(), strict=True):
        upper.set_title(f"{label(kernel)}, absolute")
        _weights(upper, attention, _styled(variants), uniform, "absolute", {"value": "log"})
        lower.set_title(f"{label(kernel)}, signed")
        _weights(lower, attention, _styled(variants), uniform, "signed", {"value": "symlog", "linthresh": 1e-3})
        lower.set_xlabel(DISTANCE)
    grid[0, 0].set_ylabel("mean weight")
    grid[1, 0].set_ylabel("mean weight, linear\nwithin ±0.001")
    panels.legends_beneath(figure, grid.flat)
    panels.head(figure, comparison, "validation split. Means over layers, heads, seeds and queries.")
    return figure


def layers_figure(attention: pd.DataFrame, comparison: Comparison) -> Figure:
    """Absolute weights: a row per layer, a column per kernel."""
    groups, layers = by_kernel(comparison.variants), list(attention.groupby("layer"))
    uniform = uniform_weight(attention, comparison)
    figure, grid = panels.grid_of(len(layers), len(groups), (2.75, 2.3), (0.3, 1.5), 7.5, sharex=True, sharey=True)
    for row, (layer, of_layer) in zip(grid, layers, strict=True):
        for axes, (kernel, variants) in zip(row, groups.items(), strict=True):
            axes.set_title(f"{label(kernel)}, layer {layer}")
            _weights(axes, of_layer, _styled(variants), uniform, "absolute", {"value": "log"})
    for axes in grid[-1]:
        axes.set_xlabel(DISTANCE)
    panels.name_vertical(figure, "mean absolute weight (logarithmic axis)")
    panels.head(figure, comparison, "validation split. Means over heads, seeds and queries.")
    panels.legends_beneath(figure, grid.flat)
    return figure


def attention_by_setting(attention: pd.DataFrame, comparison: Comparison) -> Figure:
    """Absolute weights: a panel per kernel and position encoding, a line per setting.

    Weights of more than 1 are no shares of a whole, and have no place on one axis with the others.
    """
    unbounded = set(attention[attention["absolute"] > 1]["variant"])
    shares = {name: [v for v in variants if v.name not in unbounded] for name, variants in by_base(comparison).items()}
    looks, uniform = looks_by_setting(comparison), uniform_weight(attention, comparison)
    groups = {name: variants for name, variants in shares.items() if variants}
    figure, shown = panels.panels_of(groups, COLUMNS, (3.6, 2.6), (0, 1.0), 6.5, sharex=True, sharey=True)
    for axes, variants in shown:
        styled = {v.name: (looks[v.name], setting_label(v, comparison)) for v in variants}
        _weights(axes, attention, styled, uniform, "absolute", {"value": "log"})
        axes.set_xlabel(DISTANCE)
        axes.label_outer()
    panels.name_vertical(figure, "mean absolute weight (logarithmic axis)")
    without = f" Not shown, as it divides by no sum: {', '.join(sorted(unbounded))}." if unbounded else ""
    panels.head(figure, comparison, f"validation split. Means over layers, heads, seeds and queries.{without}")
    panels.legend_below(figure, figure.axes, 4, handlelength=3)
    return figure


def _distance_axis(axes: Axes, ticks: Sequence[int]) -> None:
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()


def _styled(variants: list[VariantRecord]) -> dict[str, Any]:
    return {variant.name: (variant_style(variant), legend_label(variant.name)) for variant in variants}


def _weights(
    axes: Axes, attention: pd.DataFrame, styled: dict[str, Any], uniform: float, column: str, scale: dict[str, Any]
) -> None:
    """The weights of variants, each in its style and with its name in the legend."""
    averaged = attention.groupby(["variant", "distance"], as_index=False)[column].mean()
    furthest = int(averaged["distance"].max())
    for name, (look, text) in styled.items():
        rows = averaged[averaged["variant"] == name]
        if len(rows):
            # Means over ranges of distance that grow by a fixed factor; 0 has a range of its own.
            edges = np.unique(np.geomspace(1, rows["distance"].max() + 1, BINS).astype(int))
            binned = rows.groupby(np.digitize(rows["distance"], edges))[["distance", column]].mean()
            axes.plot(binned["distance"], binned[column], label=text, **look, markevery=3, markersize=4.5)
    axes.axhline(uniform, color=MUTED, linewidth=1.2, linestyle=(0, (2, 2)), label="uniform attention")
    if column == "signed":
        axes.axhline(0, color=MUTED, linewidth=0.8)
    _distance_axis(axes, [tick for tick in (0, 1, 10, 100, 1000) if tick <= furthest])
    axes.set_xlim(-0.15, 1.1 * furthest)
    axes.set_yscale(**scale)
    label_powers_of_ten(axes)
