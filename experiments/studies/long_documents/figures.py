"""The figures, the tables and the samples of the study of long documents."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures.curves import finished_seeds, plotted, smoothed, smoothing
from experiments.figures.panels import (
    doubling_axis,
    grid_of,
    head,
    legend_below,
    lines_by_seed,
    marks_with_intervals,
    name_vertical,
    panels_of,
)
from experiments.figures.settings import LOOKS
from experiments.figures.style import draw, legend_label, variant_style
from experiments.judge.statistics import estimates, finished_values
from experiments.records.schema import KNOWS_NOTHING, ONE_ANSWER, Comparison
from experiments.studies.answers import samples
from experiments.studies.long_documents.measure import COSTS, ROUNDS, line_of, lines_of, named
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)
PUBLISHED = {
    ("RoFormer (2104.09864)", "validation"): {512: 64.13, 1024: 66.07},
    ("RoFormer (2104.09864)", "test"): {512: 68.29, 1024: 69.79},
}
"""accuracy in percent on CAIL2019-SCM by maximum length: the paper's table of that task"""
MIB = 2**20
MARKS = 6
"""along a curve"""
TRAINING_SMOOTHER = 3
"""times as many records a point in the figure of training as in others"""
LENGTH = "maximum length (tokens)"


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    directory, costs = output / "figures", COSTS.read(root)
    values = by_length(finished_values(root, comparison, curves), comparison)
    quantity = {"quantity": comparison.objective.quantity, "texts": comparison.evaluated_windows.get("test", 0)}
    entries: Entries = []
    if not values.empty:
        entries.append(draw(directory, STUDY.figure("accuracy", **quantity), accuracy_figure, values, comparison))
        entries.append(STUDY.table("accuracy", accuracy_table(values, comparison), **quantity))
    if costs is not None and not costs.empty:
        entries.append(draw(directory, STUDY.figure("cost"), cost_figure, costs, comparison))
        entries.append(STUDY.table("cost", cost_table(costs, comparison)))
    words: dict[str, dict[str, Any]] = {
        "validation": {"windows": comparison.evaluated_windows["validation"], **quantity},
        "train": {"log_every": comparison.config["log_every"]},
    }
    for split, stem in (("validation", "validation"), ("train", "training")):
        if split in set(curves["split"]):
            entry = STUDY.figure(stem, **words[split])
            entries.append(draw(directory, entry, curves_figure, curves, summary, comparison, split))
    return [*entries, *samples(STUDY, root, comparison, partial(told, comparison))]


def by_length(values: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """The test figure of every finished run: columns variant, seed, line, context, value."""
    mine = values[values["metric"] == f"test_{comparison.objective.metric}"].dropna(subset="value")
    variants = [named(comparison, name) for name in mine["variant"]]
    return mine.assign(
        line=[line_of(variant) for variant in variants], context=[comparison.context_of(each) for each in variants]
    )


def accuracy_figure(values: pd.DataFrame, comparison: Comparison) -> Figure:
    """The test figure against maximum length: a line per kernel and position, seeds thin, means with intervals."""
    figure, ((axes,),) = grid_of(1, 1, (7.0, 4.4))
    _lines(axes, values, comparison, "value")
    _finish(axes, values)
    axes.set_ylabel(f"test {comparison.objective.quantity}")
    legend_below(figure, [axes], 3)
    one = len(comparison.seeds) == 1
    note = "One seed: no interval." if one else "Thin: each seed. Thick: mean, with its 95 % interval."
    head(figure, comparison, f"test split. {note}")
    return figure


def cost_figure(costs: pd.DataFrame, comparison: Comparison) -> Figure:
    """Time and memory of a document against its length, on two logarithmic axes."""
    figure, ((time, memory),) = grid_of(1, 2, (4.6, 4.2))
    shown = costs.assign(seed=costs["round"], line=[line_of(named(comparison, each)) for each in costs["variant"]])
    shown = shown.assign(milliseconds=shown["seconds"] * 1e3, mebibytes=shown["bytes"] / MIB)
    shown = shown.groupby(["line", "context"], as_index=False)[["milliseconds", "mebibytes"]].median().assign(seed=0)
    for axes, column, words in (
        (time, "milliseconds", "time of a document (ms)"),
        (memory, "mebibytes", "memory of a document at its peak (MiB)"),
    ):
        _lines(axes, shown, comparison, column)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
        _finish(axes, shown)
        axes.set_ylabel(words)
    legend_below(figure, [time], 3)
    head(figure, comparison, f"forward pass of one text. Medians of {ROUNDS} rounds.")
    return figure


def curves_figure(curves: pd.DataFrame, summary: pd.DataFrame, comparison: Comparison, split: str) -> Figure:
    """A split's figures against optimiser steps: a panel per kernel and position, a line per maximum length."""
    shown = plotted(curves, split, comparison)
    recorded = curves[(curves["split"] == split) & (curves["metric"] == shown.metric)]
    lengths = sorted({comparison.context_of(variant) for variant in comparison.variants})
    figure, panels = panels_of(lines_of(comparison), 3, (3.4, 3.6), (0.3, 0.6), 6.5, sharex=True, sharey=True)
    finished = finished_seeds(summary)
    width = smoothing(curves, split, comparison) * (TRAINING_SMOOTHER if split == "train" else 1)
    for axes, variants in panels:
        axes.set_title(legend_label(line_of(variants[0])))
        for variant in variants:
            length, seeds = comparison.context_of(variant), finished.get(variant.name, set())
            runs: Any = recorded[recorded["variant"] == variant.name].groupby("seed")
            each = {seed: smoothed(run, width) for seed, run in runs}
            if split == "train":  # single batches scatter so much that the lines of seeds hide everything
                each, seeds = mean_of({seed: run for seed, run in each.items() if seed in seeds} or each), {0}
            mine = pd.concat([run.assign(seed=seed) for seed, run in each.items()]) if each else recorded.iloc[:0]
            look = LOOKS[lengths.index(length) % len(LOOKS)] | {"markersize": 4.5}
            lines_by_seed(axes, mine, "step", "value", look, f"{length:,} tokens", seeds, MARKS)
        axes.set_xlabel("optimiser step")
    legend_below(figure, figure.axes, 4)
    name_vertical(figure, shown.quantity)
    lines = (
        "Means of the finished seeds." if split == "train" else "Thin: each seed. Thick: mean of the finished seeds."
    )
    note = f" Each point: mean of {width} records." if width > 1 else ""
    head(figure, comparison, f"{split} split. {lines}{note}")
    return figure


def mean_of(runs: dict[int, pd.DataFrame]) -> dict[int, pd.DataFrame]:
    """One run that is the mean of these, at the steps that all have."""
    if not runs:
        return {}
    columns = [run.set_index("step")["value"] for run in runs.values()]
    return {0: pd.concat(columns, axis=1).dropna().mean(axis=1).rename("value").rename_axis("step").reset_index()}


def _lines(axes: Axes, table: pd.DataFrame, comparison: Comparison, column: str) -> None:
    """A line of means for each variant without its length, seeds thin, with intervals where there are seeds enough."""
    for line, variants in lines_of(comparison).items():
        mine, look = table[table["line"] == line], variant_style(variants[0])
        if "@" in line:  # those without settings have the same mark, filled
            look |= {"markerfacecolor": "white"}
        if len(mine):
            lines_by_seed(axes, mine, "context", column, look, legend_label(line))
            found = estimates(mine, "context", column)
            marks_with_intervals(axes, found.index, found, color=look["color"], marker="", capsize=3)


def _finish(axes: Axes, table: pd.DataFrame) -> None:
    doubling_axis(axes, sorted(table["context"].unique()), LENGTH)


def accuracy_table(values: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """A row of strings per variant without its length, a column per maximum length, and what was published."""
    is_share = comparison.objective.metric == "accuracy"
    found = estimates(values, ["line", "context"], "value")
    lengths = sorted(values["context"].unique())
    published = PUBLISHED if is_share else {}
    shown_lengths = sorted({*lengths, *(length for row in published.values() for length in row)})

    def cell(line: str, length: int) -> str:
        if (line, length) not in found.index:
            return "-"
        row: Any = found.loc[line, length]
        scale = 100 if is_share else 1
        mean, low, high = (f"{scale * row[name]:.{1 if is_share else 3}f}" for name in ("mean", "low", "high"))
        return f"{mean} ({low} to {high})" if row["n"] > 2 else mean

    data = ", ".join(each.called for each in comparison.data)
    rows = [
        {"variant": line, "data": data, "n": str(int(found.loc[line]["n"].max()))}
        | {f"{length:,}": cell(line, length) for length in shown_lengths}
        for line in lines_of(comparison)
        if line in set(values["line"])
    ]
    for floor in comparison.floors_of(comparison.objective.metric):
        name = ONE_ANSWER if floor.name == KNOWS_NOTHING else floor.name
        told = f"{100 * floor.value:.1f}" if is_share else f"{floor.value:.3f}"
        cells = dict.fromkeys((f"{length:,}" for length in lengths), told)
        blank = dict.fromkeys((f"{length:,}" for length in shown_lengths), "-")
        rows.append({"variant": f"floor: {name}", "data": data, "n": "-"} | blank | cells)
    rows += [
        {"variant": name, "data": f"CAIL2019-SCM, {split}, as published", "n": "1"}
        | {f"{length:,}": f"{row[length]:.1f}" if length in row else "-" for length in shown_lengths}
        for (name, split), row in published.items()
    ]
    return pd.DataFrame(rows)


def cost_table(costs: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """A row of strings per variant without its length: milliseconds and MiB of a document by length."""
    medians = costs.assign(line=[line_of(named(comparison, each)) for each in costs["variant"]])
    found = medians.groupby(["line", "context"])[["seconds", "bytes"]].median()
    lengths = sorted(costs["context"].unique())
    shown: dict[str, Callable[[Any], str]] = {
        "ms": lambda row: f"{row['seconds'] * 1e3:,.1f}",
        "MiB": lambda row: f"{row['bytes'] / MIB:,.1f}",
    }
    rows = []
    for line in lines_of(comparison):
        if line in found.index:
            cells = {
                f"{length:,} tokens, {unit}": show(found.loc[line, length]) if (line, length) in found.index else "-"
                for unit, show in shown.items()
                for length in lengths
            }
            rows.append({"variant": line} | cells)
    return pd.DataFrame(rows)


def told(comparison: Comparison, said: "pd.Series[str]") -> dict[str, str]:
    """What the variants of each line say, at each maximum length."""
    lines = {
        line: [f"{comparison.context_of(each):,}: {said[each.name]}" for each in variants if each.name in said]
        for line, variants in lines_of(comparison).items()
    }
    return {line: "; ".join(words) for line, words in lines.items() if words}
