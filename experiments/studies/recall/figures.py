"""The figures and the table of the recall and the copying study."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis.statistics import estimate
from experiments.figures.curves import failures, finished_seeds
from experiments.figures.panels import grid_of, head, legend_beneath, lines_by_seed, name_vertical, panels_of
from experiments.figures.settings import curves_by_setting, final_by_setting, named_settings
from experiments.figures.style import MUTED, by_kernel, draw, kernel_style, label, variant_style
from experiments.records.schema import Comparison, VariantRecord
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)
MARKS = 6
"""markers along a curve"""


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    accuracies = test_accuracies(curves, comparison, summary)
    recorded = curves[(curves["metric"] == "accuracy") & (curves["split"] == "validation")]
    directory, tables = output / "figures", (comparison, summary)
    entries: Entries = []
    if any(set(named_settings(variant)) - {"dim"} for variant in comparison.variants):
        values = accuracies.rename(columns={"accuracy": "value"}).assign(metric="test_accuracy")
        entry = STUDY.figure("accuracy-by-setting")
        entries.append(draw(directory, entry, final_by_setting, values, summary, comparison))
        what = {"metric": "accuracy", "quantity": "validation accuracy"}
        entry = STUDY.figure("accuracy-by-step")
        return [*entries, draw(directory, entry, curves_by_setting, curves, summary, comparison, **what)]
    if not accuracies.empty:
        by, make = ("width", width_figure) if accuracies["width"].nunique() > 1 else ("variant", variants_figure)
        entries.append(draw(directory, STUDY.figure(f"accuracy-by-{by}"), make, accuracies, *tables))
    if not recorded.empty:
        entries.append(draw(directory, STUDY.figure("accuracy-by-step"), steps_figure, recorded, *tables))
    return entries


def test_accuracies(curves: pd.DataFrame, comparison: Comparison, summary: pd.DataFrame) -> pd.DataFrame:
    """One row per finished run, in the order of the variants: variant, kernel, position, width, seed, accuracy."""
    finished = finished_seeds(summary)
    tested = curves[(curves["split"] == "test") & (curves["metric"] == "accuracy")]
    counts = [seed in finished[name] for name, seed in zip(tested["variant"], tested["seed"], strict=True)]
    accuracies = tested.loc[counts].rename(columns={"value": "accuracy"})[["variant", "seed", "accuracy"]]
    places = [(v.name, v.kernel, v.position, _width(v, comparison)) for v in comparison.variants]
    return pd.DataFrame(places, columns=["variant", "kernel", "position", "width"]).merge(accuracies, on="variant")


def _bounded(shares: "pd.Series[float]") -> tuple[float, float, float]:
    """Mean and interval: what Student's t has below 0 and above 1 is cut off."""
    result = estimate(shares.tolist())
    return result.mean, float(np.clip(result.low, 0, 1)), float(np.clip(result.high, 0, 1))


def _width(variant: VariantRecord, comparison: Comparison) -> int:
    """The model width of a variant: its own, if it has one, or else that of the comparison."""
    return int(variant.settings.get("dim", comparison.config["dim"]))


def _labels(variants: list[VariantRecord], comparison: Comparison, summary: pd.DataFrame) -> dict[str, str]:
    """For each position encoding of a kernel's variants its entry in a legend, which tells what did not finish."""
    failed = failures(summary)
    labels: dict[str, str] = {}
    for variant in variants:
        position = "rope" if variant.name.startswith("softmax-rope") else variant.position
        text = labels.setdefault(variant.position, label(position))
        if variant.name in failed:
            labels[variant.position] = f"{text}\n(width {_width(variant, comparison)}: {failed[variant.name]})"
    return labels


def width_figure(accuracies: pd.DataFrame, comparison: Comparison, summary: pd.DataFrame) -> Figure:
    """Test accuracy by width, a panel per kernel, a line per position encoding."""
    widths = _widths(comparison)
    groups = by_kernel(comparison.variants)
    figure, panels = panels_of(groups, 4, (2.75, 4.0), (0.3, 0.5), 5, sharex=True, sharey=True)
    for axes, variants in panels:
        labels = _labels(variants, comparison, summary)
        for number, (position, text) in enumerate(labels.items()):
            _width_line(axes, accuracies, widths, 0, (variants[0].kernel, position), text, len(labels) - 1 - number)
        axes.set_xticks(range(len(widths)), [str(width) for width in widths])
        axes.set_xlim(-0.5, len(widths) - 0.5)
        axes.set_xlabel("model width")
        axes.tick_params(labelbottom=True)
        legend_beneath(axes, axes.get_legend_handles_labels()[0])
    name_vertical(figure, "test accuracy (share of answers)")
    return _finished(figure, comparison, "test")


def variants_figure(accuracies: pd.DataFrame, comparison: Comparison, summary: pd.DataFrame) -> Figure:
    """Test accuracy of every variant, where all have one width: a panel per kernel, a place per position encoding."""
    groups = by_kernel(comparison.variants)
    labels = {kernel: _labels(variants, comparison, summary) for kernel, variants in groups.items()}
    width = 1.1 * max(map(len, labels.values())) + 0.5
    figure, panels = panels_of(labels, len(labels), (width, 3.4), (0.6, 0), sharey=True)
    for (axes, texts), kernel in zip(panels, labels, strict=True):
        for place, (position, text) in enumerate(texts.items()):
            _width_line(axes, accuracies, [*accuracies["width"].unique()], place, (kernel, position), text)
        axes.set_xticks(range(len(texts)), [text.replace("-", "\n", 1) for text in texts.values()])
        axes.set_xlim(-0.6, len(texts) - 0.4)
    figure.axes[0].set_ylabel("test accuracy (share of answers)")
    return _finished(figure, comparison, "test")


def _width_line(
    axes: Axes,
    accuracies: pd.DataFrame,
    widths: list[int],
    shift: float,
    made: tuple[str, str],
    text: str,
    beneath: int = 0,
) -> None:
    """The accuracies of a kernel with a position encoding; the places of ``widths`` are shifted.

    Marks are open, and wider where others stand ``beneath`` the same width later, so that none hides another.
    """
    runs = accuracies[(accuracies["kernel"] == made[0]) & (accuracies["position"] == made[1])]
    look = kernel_style(*made)
    grouped: Any = runs.groupby("width")["accuracy"]
    estimates = {width: _bounded(shares) for width, shares in grouped}
    places = [widths.index(width) + shift for width in estimates]
    axes.plot(
        places,
        [mean for mean, _, _ in estimates.values()],
        label=text,
        linewidth=1.5,
        markersize=5.5 + 2 * beneath,
        markerfacecolor="none",
        **look,
    )
    for place, (mean, low, high) in zip(places, estimates.values(), strict=True):
        axes.errorbar(
            place,
            mean,
            yerr=[[mean - low], [high - mean]],
            color=look["color"],
            capsize=3 + 1.5 * beneath,
            linewidth=1.2,
        )
    if runs["seed"].nunique() > 1:
        seeds = [widths.index(width) + shift for width in runs["width"]]
        axes.plot(seeds, runs["accuracy"], ".", color=look["color"], markersize=3.5)


def steps_figure(recorded: pd.DataFrame, comparison: Comparison, summary: pd.DataFrame) -> Figure:
    """Validation accuracy against optimiser steps, a column per kernel and a row per width."""
    groups, widths, finished = by_kernel(comparison.variants), _widths(comparison), finished_seeds(summary)
    figure, grid = grid_of(len(widths), len(groups), (2.75, 2.3), (0.3, 1.5), 5, sharex=True, sharey=True)
    name_vertical(figure, "validation accuracy (share of answers)")
    for column, (kernel, variants) in zip(grid.T, groups.items(), strict=True):
        labels = _labels(variants, comparison, summary)
        for axes, width in zip(column, widths, strict=True):
            axes.set_title(label(kernel) if len(widths) == 1 else f"{label(kernel)}, width {width}")
            trained = [variant for variant in variants if _width(variant, comparison) == width]
            if not trained:
                axes.text(0.5, 0.5, "not trained at this width", transform=axes.transAxes, ha="center", color=MUTED)
            for number, variant in enumerate(trained):
                mine = recorded[recorded["variant"] == variant.name]
                look, text, mean_of = variant_style(variant), labels[variant.position], finished[variant.name]
                lines_by_seed(axes, mine, "step", "value", look, text, mean_of, MARKS, number)
        column[-1].set_xlabel(f"optimiser step\n({comparison.read_in(1)})")
        # An entry per position encoding, of whichever width has it.
        entries = {text: line for axes in column for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
        handles = [entries[text] for text in labels.values() if text in entries]
        legend_beneath(column[-1], handles)
    return _finished(figure, comparison, "validation")


def _widths(comparison: Comparison) -> list[int]:
    return sorted({_width(variant, comparison) for variant in comparison.variants})


def _finished(figure: Figure, comparison: Comparison, split: str) -> Figure:
    for axes in figure.axes:
        axes.set_ylim(-0.03, 1.05)
    seeds = len(comparison.seeds)
    head(figure, comparison, f"{split} split. {'One seed.' if seeds == 1 else f'{seeds} seeds.'}")
    return figure
