"""The figures and tables of the decay study."""

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis.statistics import Estimate, estimate
from experiments.figures.panels import head, legend_below, seeds_and_mean
from experiments.figures.style import MUTED, by_kernel, draw, label, label_powers_of_ten, variant_style
from experiments.records.schema import Comparison, VariantRecord
from experiments.studies.decay.measure import HEAD_DIM, read
from experiments.studies.decay.study import STUDY
from experiments.study import FigureEntry, TableEntry
from linear_rope.diagnostics import expected_rope_mask

BINS = 24
DISTANCE = "distance Δ (tokens)"


EXPECTED_BOUND = {0: "32.5", 1: "31.5", 50: "12.63", 100: "10.23", 200: "7.24", 256: "6.54"}
"""what RoFormer's Figure 2 shows by distance, worked out from its definition; the paper prints no numbers"""

EXPECTED_SIMILARITY = {128: "0.284", 256: "0.354", 512: "0.185", 1024: "0.263"}
"""c(Δ) at d = 64 where it rises again with distance, worked out from its definition; no paper prints numbers"""


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    bound, scores, mask, attention, losses = (
        read(root, name) for name in ("bound", "scores", "mask", "attention", "position_loss")
    )
    directory = output / "figures"
    entries: list[FigureEntry | TableEntry] = []
    if bound is not None:
        entries.append(draw(directory, STUDY.figure("bound"), bound_figure, bound, EXPECTED_BOUND))
        shown = bound[bound["distance"].isin(EXPECTED_BOUND)]
        values = pd.DataFrame(
            {
                "distance": shown["distance"],
                "computed here": shown["bound"].map("{:.2f}".format),
                "expected": shown["distance"].map(EXPECTED_BOUND),
            }
        )
        entries.append(STUDY.table("bound", values))
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
        draw(directory, STUDY.figure("attention"), attention_figure, attention, comparison),
        draw(directory, STUDY.figure("attention-layers"), layers_figure, attention, comparison),
    ]


def score_means(scores: pd.DataFrame) -> pd.DataFrame:
    """Over draws, by distance: columns distance, expected (c(Δ)), and mean, low and high of equal and of gaussian."""
    rows = []
    for distance, of_distance in scores.groupby("distance"):
        equal, gaussian = (estimate(list(of_distance[name])) for name in ("equal", "gaussian"))
        expected = expected_rope_mask(torch.tensor(distance), HEAD_DIM).item()
        rows.append((distance, expected, *_ends(equal), *_ends(gaussian)))
    names = [f"{kind}_{end}" for kind in ("equal", "gaussian") for end in ("mean", "low", "high")]
    return pd.DataFrame.from_records(rows, columns=["distance", "expected", *names])


def _ends(found: Estimate) -> tuple[float, float, float]:
    return found.mean, found.low, found.high


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
    axes.plot(
        list(expected), [float(value) for value in expected.values()], "o", markersize=7, markerfacecolor="none",
        markeredgecolor="#D55E00", label="what Figure 2 of RoFormer must show", clip_on=False,
    )  # fmt: skip
    axes.set(xlabel=DISTANCE, ylabel="bound, (2/d)·Σ|Sᵢ| (no unit)")
    axes.set(xlim=(0, max(bound["distance"].max(), 1)), ylim=(0, None))
    axes.legend(loc="upper right", frameon=False)
    return figure


def scores_figure(means: pd.DataFrame, head_dim: int, risen: dict[int, str]) -> Figure:
    """Equal content beside its expectation c(Δ), the distances ``risen`` marked, and independent content."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    every = torch.linspace(0, means["distance"].max(), 2049, dtype=torch.float64).round().long().unique()
    expected = expected_rope_mask(every, head_dim).numpy()
    left.plot(every.numpy(), expected, color="black", linewidth=0.9, label="expected: c(Δ); 0")
    right.axhline(0, color="black", linewidth=0.9)
    for axes, kind in ((left, "equal"), (right, "gaussian")):
        error = (means[f"{kind}_mean"] - means[f"{kind}_low"], means[f"{kind}_high"] - means[f"{kind}_mean"])
        axes.errorbar(
            means["distance"], means[f"{kind}_mean"], yerr=error, fmt="o", color="#D55E00", markersize=4, capsize=2.5,
            label="mean over draws",
        )  # fmt: skip
        _distance_axis(axes)
    left.plot(
        list(risen), [float(value) for value in risen.values()], "o", markersize=11, markerfacecolor="none",
        markeredgecolor="#0072B2", label="c(Δ) worked out by hand where it rises again",
    )  # fmt: skip
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
        _distance_axis(axes)
    panels[0].set_ylabel("rotated score / softmax kernel (ratio)")
    panels[-1].legend(loc="upper right", frameon=False)
    return figure


def attention_figure(attention: pd.DataFrame, comparison: Comparison) -> Figure:
    """A row per kernel: absolute weights on logarithmic axes, and signed weights."""
    averaged = attention.groupby(["variant", "distance"], as_index=False)[["signed", "absolute"]].mean()
    groups = by_kernel(comparison.variants)
    figure = Figure(figsize=(10, 2.7 * len(groups) + 0.8), layout="constrained")
    grid = figure.subplots(len(groups), 2, sharex=True, sharey="col", squeeze=False)
    for (left, right), (kernel, variants) in zip(grid, groups.items(), strict=True):
        _variants(left, averaged, variants, "absolute")
        left.set_title(f"{label(kernel)}, absolute weights")
        left.set_yscale("log")
        _variants(right, averaged, variants, "signed")
        right.set_title(f"{label(kernel)}, signed weights")
        right.axhline(0, color=MUTED, linewidth=0.8)
        right.set_yscale("symlog", linthresh=1e-3)
        right.legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), fontsize=9)
        for axes in (left, right):
            label_powers_of_ten(axes)
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
        of_layer = attention[attention["layer"] == layer]
        averaged = of_layer.groupby(["variant", "distance"], as_index=False)[["signed", "absolute"]].mean()
        for axes, (kernel, variants) in zip(row, groups.items(), strict=True):
            _variants(axes, averaged, variants, "absolute")
            axes.set_title(f"{label(kernel)}, layer {layer}")
            axes.set_yscale("log")
            label_powers_of_ten(axes)
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
    grid = np.atleast_1d(figure.subplots(rows, columns, sharey=True, squeeze=False)).ravel()
    for axes in grid[len(groups) :]:
        axes.remove()
    middle = (losses["first"] + losses["last"] + 1) / 2
    ticks = sorted(middle.unique())
    for axes, (kernel, variants) in zip(grid, groups.items(), strict=False):
        for variant in variants:
            mine = losses.assign(middle=middle)[losses["variant"] == variant.name]
            if mine.empty:
                continue
            seeds = [rows.set_index("middle")["bits_per_byte"].sort_index() for _, rows in mine.groupby("seed")]
            seeds_and_mean(axes, seeds, seeds, variant_style(variant), label=label(variant.name))
        axes.set_title(label(kernel))
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("position in the window (tokens)")
    figure.supylabel("bits per byte", fontsize=10)
    head(figure, comparison, "test split. Thin: each seed. Thick: mean.")
    legend_below(figure, grid[: len(groups)], 4)
    return figure


def _distance_axis(axes: Axes) -> None:
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
    axes.minorticks_off()
    axes.set_xlabel(DISTANCE)


def _variants(axes: Axes, averaged: pd.DataFrame, variants: list[VariantRecord], column: str) -> None:
    for variant in variants:
        rows = averaged[averaged["variant"] == variant.name]
        if rows.empty:
            continue
        distance, value = _binned(rows["distance"].to_numpy(), rows[column].to_numpy())
        axes.plot(distance, value, label=label(variant.name), markevery=3, markersize=4.5, **variant_style(variant))
    # Queries of the second half of a window of twice as many positions, equal weights on all that they see.
    half = int(averaged["distance"].max()) + 1
    uniform = (1 / np.arange(half + 1, 2 * half + 1)).mean()
    axes.axhline(uniform, color=MUTED, linewidth=2, alpha=0.5, label="uniform attention")
    axes.set_xscale("symlog", linthresh=1)
    ticks = [tick for tick in (0, 1, 10, 100, 1000) if tick <= averaged["distance"].max()]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlim(-0.15, 1.1 * averaged["distance"].max())
    axes.minorticks_off()


def _binned(distance: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over ranges of distance that grow by a fixed factor; 0 has a range of its own."""
    edges = np.unique(np.geomspace(1, distance.max() + 1, BINS).astype(int))
    bins = np.digitize(distance, edges)
    chosen = np.unique(bins)
    return (
        np.array([distance[bins == index].mean() for index in chosen]),
        np.array([value[bins == index].mean() for index in chosen]),
    )
