"""The figures of the decay experiment."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.plots import MUTED, arm_style, label, label_powers_of_ten
from linear_rope.diagnostics import expected_rope_mask

BINS = 24
DISTANCE = "distance Δ (tokens)"


def bound_figure(bound: pd.DataFrame, expected: dict[int, str]) -> Figure:
    """The bound against distance, on linear axes as published, and the values it is checked against."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(bound["distance"], bound["bound"], color="black", linewidth=1.2, label="computed here")
    axes.plot(
        list(expected), [float(value) for value in expected.values()], "o", markersize=7, markerfacecolor="none",
        markeredgecolor="#D55E00", label="what Figure 2 of RoFormer must show", clip_on=False,
    )  # fmt: skip
    axes.set(xlabel=DISTANCE, ylabel="bound, (2/d)·Σ|Sᵢ| (no unit)")
    axes.set(xlim=(0, max(bound["distance"].max(), 1)), ylim=(0, None))
    axes.legend(loc="upper right", frameon=False)
    return figure


def mask_figure(mask: pd.DataFrame) -> Figure:
    """c(Δ) as lines, means over draws as marks with intervals, a panel per number of features."""
    groups = [(int(count), mask[mask["num_features"] == count]) for count in sorted(mask["num_features"].unique())]
    figure = Figure(figsize=(3.4 * len(groups) + 0.8, 3.8), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(groups), sharey=True))
    for axes, (num_features, rows) in zip(panels, groups, strict=True):
        error = (rows["mean"] - rows["low"], rows["high"] - rows["mean"])
        axes.axhline(0, color=MUTED, linewidth=0.8)
        # All distances where they are few.
        every = torch.linspace(0, rows["distance"].max(), 2049, dtype=torch.float64).round().long().unique()
        expected = expected_rope_mask(every, num_features).numpy()
        axes.plot(every.numpy(), expected, color="black", linewidth=0.9, label="expected, c(Δ)")
        axes.errorbar(
            rows["distance"], rows["mean"], yerr=error, fmt="o", color="#D55E00", markersize=4, capsize=2.5,
            label="mean of real draws",
        )  # fmt: skip
        axes.set_title(f"M = {num_features} features")
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
        axes.minorticks_off()
        axes.set_xlabel(DISTANCE)
    panels[0].set_ylabel("rotated score / softmax kernel (ratio)")
    panels[-1].legend(loc="upper right", frameon=False)
    return figure


def attention_figure(attention: pd.DataFrame, comparison: dict[str, Any]) -> Figure:
    """All arms in one figure: absolute weights (log-log) and signed weights."""
    averaged = attention.groupby(["variant", "distance"], as_index=False)[["signed", "absolute"]].mean()
    figure = Figure(figsize=(10, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _arms(left, averaged, comparison, "absolute")
    left.set_yscale("log")
    label_powers_of_ten(left)
    left.set_ylabel("mean absolute weight (logarithmic axis)")
    _arms(right, averaged, comparison, "signed")
    right.axhline(0, color=MUTED, linewidth=0.8)
    right.set_yscale("symlog", linthresh=1e-3)
    label_powers_of_ten(right)
    right.set_ylabel("mean weight, signed\n(linear within ±0.001, logarithmic beyond)")
    _legend(figure, left)
    return figure


def layers_figure(attention: pd.DataFrame, comparison: dict[str, Any]) -> Figure:
    """Absolute weights, a panel per layer."""
    layers = sorted(attention["layer"].unique())
    columns = min(3, len(layers))
    rows = -(-len(layers) // columns)
    figure = Figure(figsize=(max(5 * columns, 7), 4 * rows + 0.8), layout="constrained")
    grid = np.atleast_1d(figure.subplots(rows, columns, sharey=True, squeeze=False)).ravel()
    for axes in grid[len(layers) :]:
        axes.remove()
    for axes, layer in zip(grid, layers, strict=False):
        of_layer = attention[attention["layer"] == layer]
        averaged = of_layer.groupby(["variant", "distance"], as_index=False)[["signed", "absolute"]].mean()
        _arms(axes, averaged, comparison, "absolute")
        axes.set_title(f"layer {layer}")
        axes.set_yscale("log")
        label_powers_of_ten(axes)
    grid[0].set_ylabel("mean absolute weight (logarithmic axis)")
    _legend(figure, grid[0])
    return figure


def _arms(axes: Axes, averaged: pd.DataFrame, comparison: dict[str, Any], column: str) -> None:
    for variant in comparison["variants"]:
        rows = averaged[averaged["variant"] == variant["name"]]
        if rows.empty:
            continue
        distance, value = _binned(rows["distance"].to_numpy(), rows[column].to_numpy())
        axes.plot(distance, value, label=label(variant["name"]), markevery=3, **arm_style(variant))
    # Queries of the second half of a window of twice as many positions, equal weights on all that they see.
    half = int(averaged["distance"].max()) + 1
    uniform = (1 / np.arange(half + 1, 2 * half + 1)).mean()
    axes.axhline(uniform, color=MUTED, linewidth=2, alpha=0.5, label="uniform attention")
    axes.set_xscale("symlog", linthresh=1)
    ticks = [tick for tick in (0, 1, 10, 100, 1000) if tick <= averaged["distance"].max()]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlim(-0.15, 1.1 * averaged["distance"].max())
    axes.minorticks_off()
    axes.set_xlabel(DISTANCE)


def _binned(distance: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over ranges of distance that grow by a fixed factor; 0 has a range of its own."""
    edges = np.unique(np.geomspace(1, distance.max() + 1, BINS).astype(int))
    bins = np.digitize(distance, edges)
    chosen = np.unique(bins)
    return (
        np.array([distance[bins == index].mean() for index in chosen]),
        np.array([value[bins == index].mean() for index in chosen]),
    )


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
