"""The figures and tables of the decay study."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis.statistics import estimate
from experiments.figures.panels import head, legend_below, lines_by_seed, panels_for
from experiments.figures.style import MUTED, by_kernel, draw, label, label_powers_of_ten, variant_style
from experiments.records.schema import Comparison, VariantRecord
from experiments.studies.decay.measure import ATTENTION, BOUND, HEAD_DIM, POSITION_LOSS, SCORES, read_mask
from experiments.study import FigureEntry, TableEntry, read_study
from linear_rope.diagnostics import expected_rope_mask

STUDY = read_study(Path(__file__).parent)
BINS = 24
DISTANCE = "distance Δ (tokens)"
EXPECTED_BOUND = {0: "32.5", 1: "31.5", 50: "12.63", 100: "10.23", 200: "7.24", 256: "6.54"}
"""what RoFormer's Figure 2 shows by distance, worked out from its definition; the paper prints no numbers"""
EXPECTED_SIMILARITY = {128: "0.284", 256: "0.354", 512: "0.185", 1024: "0.263"}
"""c(Δ) at d = 64 where it rises again with distance, worked out from its definition; no paper prints numbers"""


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    bound, scores, mask, losses = BOUND.read(root), SCORES.read(root), read_mask(root), POSITION_LOSS.read(root)
    attention = ATTENTION.read(root)  # all are read before anything is drawn
    directory = output / "figures"
    entries: list[FigureEntry | TableEntry] = []
    if bound is not None:
        entries.append(draw(directory, STUDY.figure("bound"), bound_figure, bound, EXPECTED_BOUND))
        shown = bound[bound["distance"].isin(EXPECTED_BOUND)]
        computed, expected = shown["bound"].map("{:.2f}".format), shown["distance"].map(EXPECTED_BOUND)
        cells = {"distance": shown["distance"], "computed here": computed, "expected": expected}
        entries.append(STUDY.table("bound", pd.DataFrame(cells)))
    if scores is not None:
        means = score_means(scores)
        entries.append(draw(directory, STUDY.figure("scores"), scores_figure, means, HEAD_DIM, EXPECTED_SIMILARITY))
        entries.append(STUDY.table("scores", _score_cells(means)))
    if mask is not None:
        entries.append(draw(directory, STUDY.figure("mask"), mask_figure, mask))
    entries += attention_figures(directory, comparison, attention)
    if losses is not None:
        entries.append(draw(directory, STUDY.figure("position-loss"), position_loss_figure, losses, comparison))
    return entries


def attention_figures(
    directory: Path, comparison: Comparison, attention: pd.DataFrame | None
) -> list[FigureEntry | TableEntry]:
    """The figures of attention.csv, if there is one."""
    if attention is None:
        return []
    return [
        draw(directory, STUDY.figure(stem), make, attention, comparison)
        for stem, make in (("attention", attention_figure), ("attention-layers", layers_figure))
    ]


def score_means(scores: pd.DataFrame) -> pd.DataFrame:
    """Over draws, by distance: columns distance, expected (c(Δ)), and mean, low and high of equal and of gaussian."""
    rows = []
    for distance, of_distance in scores.groupby("distance"):
        row = {"distance": distance, "expected": expected_rope_mask(torch.tensor(distance), HEAD_DIM).item()}
        for kind in ("equal", "gaussian"):
            found = estimate(list(of_distance[kind]))
            row |= {f"{kind}_mean": found.mean, f"{kind}_low": found.low, f"{kind}_high": found.high}
        rows.append(row)
    return pd.DataFrame(rows)


def _score_cells(means: pd.DataFrame) -> pd.DataFrame:
    def interval(kind: str) -> list[str]:
        columns = (means[f"{kind}_{end}"] for end in ("mean", "low", "high"))
        return [f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in zip(*columns, strict=True)]

    return pd.DataFrame(
        {
            "distance": means["distance"].map("{:,}".format),
            "c(Δ)": means["expected"].map("{:.3f}".format),
            "worked out by hand": means["distance"].map(EXPECTED_SIMILARITY).fillna("-"),
            "key equal to its query": interval("equal"),
            "independent key": interval("gaussian"),
        }
    )


def bound_figure(bound: pd.DataFrame, expected: dict[int, str]) -> Figure:
    """The bound against distance, on linear axes as published, and the values it is checked against."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(bound["distance"], bound["bound"], color="black", linewidth=1.2, label="computed here")
    _rings(axes, expected, "what Figure 2 of RoFormer must show", color="#D55E00", markersize=7, clip_on=False)
    axes.set(xlabel=DISTANCE, ylabel="bound, (2/d)·Σ|Sᵢ| (no unit)")
    axes.set(xlim=(0, max(bound["distance"].max(), 1)), ylim=(0, None))
    axes.legend(loc="upper right", frameon=False)
    return figure


def scores_figure(means: pd.DataFrame, head_dim: int, risen: dict[int, str]) -> Figure:
    """Equal content beside its expectation c(Δ), the distances ``risen`` marked, and independent content."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _expected_line(left, means, head_dim, "expected: c(Δ); 0")
    right.axhline(0, color="black", linewidth=0.9)
    for axes, kind in ((left, "equal_"), (right, "gaussian_")):
        _marks_by_distance(axes, means, kind, "mean over draws")
    _rings(left, risen, "c(Δ) worked out by hand where it rises again", color="#0072B2", markersize=11)
    left.axhline(0, color=MUTED, linewidth=0.8)
    left.set_title("a key equal to its query")
    left.set_ylabel("score / score at distance 0 (ratio)")
    right.set_title("an independent key")
    right.set_ylabel("mean score, qᵀR_Δk / √D")
    half = 1.5 * max(abs(means["gaussian_low"].min()), abs(means["gaussian_high"].max()))
    right.set_ylim(-half, half)
    legend_below(figure, [left], 4)
    return figure


def mask_figure(mask: pd.DataFrame) -> Figure:
    """c(Δ) as lines, means over draws as marks with intervals, a panel per number of features."""
    groups: dict[Any, pd.DataFrame] = dict(list(mask.groupby("num_features")))
    figure = Figure(figsize=(3.4 * len(groups) + 0.8, 3.8), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(groups), sharey=True))
    for axes, (num_features, rows) in zip(panels, groups.items(), strict=True):
        axes.axhline(0, color=MUTED, linewidth=0.8)
        _expected_line(axes, rows, num_features, "expected, c(Δ)")
        _marks_by_distance(axes, rows, "", "mean of real draws")
        axes.set_title(f"M = {num_features} features")
    panels[0].set_ylabel("rotated score / softmax kernel (ratio)")
    panels[-1].legend(loc="upper right", frameon=False)
    return figure


def _rings(axes: Axes, values: dict[int, str], text: str, color: str, **look: Any) -> None:
    heights = [float(value) for value in values.values()]
    axes.plot(list(values), heights, "o", markerfacecolor="none", markeredgecolor=color, label=text, **look)


def _expected_line(axes: Axes, rows: pd.DataFrame, width: int, text: str) -> None:
    """c(Δ) at many distances, or all where they are few."""
    every = torch.linspace(0, rows["distance"].max(), 2049, dtype=torch.float64).round().long().unique()
    axes.plot(every.numpy(), expected_rope_mask(every, width).numpy(), color="black", linewidth=0.9, label=text)


def _marks_by_distance(axes: Axes, rows: pd.DataFrame, kind: str, text: str) -> None:
    mean, low, high = (rows[f"{kind}{end}"] for end in ("mean", "low", "high"))
    look: dict[str, Any] = {"fmt": "o", "color": "#D55E00", "markersize": 4, "capsize": 2.5}
    axes.errorbar(rows["distance"], mean, yerr=(mean - low, high - mean), label=text, **look)
    _distance_axis(axes, (0, 1, 10, 100, 1000))
    axes.set_xlabel(DISTANCE)


def attention_figure(attention: pd.DataFrame, comparison: Comparison) -> Figure:
    """A row per kernel: absolute weights on logarithmic axes, and signed weights."""
    groups = by_kernel(comparison.variants)
    figure = Figure(figsize=(10, 2.7 * len(groups) + 0.8), layout="constrained")
    grid = figure.subplots(len(groups), 2, sharex=True, sharey="col", squeeze=False)
    for (left, right), (kernel, variants) in zip(grid, groups.items(), strict=True):
        left.set_title(f"{label(kernel)}, absolute weights")
        _weights(left, attention, variants, "absolute", {"value": "log"})
        right.set_title(f"{label(kernel)}, signed weights")
        _weights(right, attention, variants, "signed", {"value": "symlog", "linthresh": 1e-3})
        right.legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel(DISTANCE)
    figure.supylabel("mean weight (signed: linear\nwithin ±0.001, logarithmic beyond)", fontsize=10)
    head(figure, comparison, "validation split. Means over layers, heads, seeds and queries.")
    return figure


def layers_figure(attention: pd.DataFrame, comparison: Comparison) -> Figure:
    """Absolute weights: a row per layer, a column per kernel."""
    layers = sorted(attention["layer"].unique())
    groups = by_kernel(comparison.variants)
    figure = Figure(figsize=(max(2.9 * len(groups) + 0.8, 7), 2.7 * len(layers) + 1.6), layout="constrained")
    grid = figure.subplots(len(layers), len(groups), sharex=True, sharey=True, squeeze=False)
    for row, layer in zip(grid, layers, strict=True):
        for axes, (kernel, variants) in zip(row, groups.items(), strict=True):
            axes.set_title(f"{label(kernel)}, layer {layer}")
            _weights(axes, attention[attention["layer"] == layer], variants, "absolute", {"value": "log"})
    for axes in grid[-1]:
        axes.set_xlabel(DISTANCE)
    figure.supylabel("mean absolute weight (logarithmic axis)", fontsize=10)
    head(figure, comparison, "validation split. Means over heads, seeds and queries.")
    legend_below(figure, grid[0], 4)
    return figure


def position_loss_figure(losses: pd.DataFrame, comparison: Comparison) -> Figure:
    """A panel per kernel, a line per position encoding: loss against the middle of each range of positions."""
    groups = by_kernel(comparison.variants)
    columns = min(2, len(groups))
    rows = -(-len(groups) // columns)
    figure = Figure(figsize=(max(4.9 * columns, 7), 3.3 * rows + 1.2), layout="constrained")
    grid = panels_for(figure, rows, columns, len(groups), sharey=True)
    losses = losses.assign(middle=(losses["first"] + losses["last"] + 1) / 2)
    ticks = sorted(losses["middle"].unique())
    for axes, (kernel, variants) in zip(grid, groups.items(), strict=True):
        for variant in variants:
            mine = losses[losses["variant"] == variant.name]
            lines_by_seed(axes, mine, "middle", "bits_per_byte", variant_style(variant), label(variant.name))
        axes.set_title(label(kernel))
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("position in the window (tokens)")
    figure.supylabel("bits per byte", fontsize=10)
    head(figure, comparison, "test split. Thin: each seed. Thick: mean.")
    legend_below(figure, grid, 4)
    return figure


def _distance_axis(axes: Axes, ticks: Sequence[int]) -> None:
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()


def _weights(
    axes: Axes, attention: pd.DataFrame, variants: list[VariantRecord], column: str, scale: dict[str, Any]
) -> None:
    averaged = attention.groupby(["variant", "distance"], as_index=False)[column].mean()
    furthest = int(averaged["distance"].max())
    for variant in variants:
        rows = averaged[averaged["variant"] == variant.name]
        if len(rows):
            # Means over ranges of distance that grow by a fixed factor; 0 has a range of its own.
            edges = np.unique(np.geomspace(1, rows["distance"].max() + 1, BINS).astype(int))
            binned = rows.groupby(np.digitize(rows["distance"], edges))[["distance", column]].mean()
            look = variant_style(variant) | {"markevery": 3, "markersize": 4.5}
            axes.plot(binned["distance"], binned[column], label=label(variant.name), **look)
    # Queries of the second half of a window of twice as many positions, equal weights on all that they see.
    uniform = (1 / np.arange(furthest + 2, 2 * furthest + 3)).mean()
    axes.axhline(uniform, color=MUTED, linewidth=2, alpha=0.5, label="uniform attention")
    if column == "signed":
        axes.axhline(0, color=MUTED, linewidth=0.8)
    _distance_axis(axes, [tick for tick in (0, 1, 10, 100, 1000) if tick <= furthest])
    axes.set_xlim(-0.15, 1.1 * furthest)
    axes.set_yscale(**scale)
    label_powers_of_ten(axes)
