"""Loss against training steps: one panel per attention kernel, on one vertical scale, with references in each."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from msgspec.structs import replace

from experiments.figures.panels import head, legend_beneath, name_vertical, panels_of
from experiments.figures.style import MUTED, by_kernel, legend_label, variant_style
from experiments.records.schema import NEXT_BYTE, Comparison, Floor, ObjectiveRecord, VariantRecord

SCALE_FROM = 0.25
"""share of the run whose losses do not set the vertical scale: the steep beginning would flatten all differences"""
POINTS = 25
"""a curve with more records is shown as the means of equal runs of records, about this many"""
MARKS = 7
"""markers along a mean curve"""

Runs = dict[str, dict[int, "pd.Series[float]"]]


def finished_seeds(summary: pd.DataFrame) -> dict[str, set[int]]:
    """For each variant the seeds that count: those with a final test figure, of which its first row tells."""
    tested = summary.drop_duplicates("variant")
    return {row["variant"]: {int(seed) for seed in row["seeds"].split()} for row in tested.to_dict("records")}


def failures(summary: pd.DataFrame) -> dict[str, str]:
    """For each variant with runs that failed or are not finished, how many of how many."""
    tested = summary.drop_duplicates("variant")
    notes = {}
    for row in tested.to_dict("records"):
        counts = [f"{row[word]} of {row['planned']} {word}" for word in ("failed", "unfinished") if row[word]]
        if counts:
            notes[row["variant"]] = ", ".join(counts)
    return notes


def plotted(curves: pd.DataFrame, split: str, comparison: Comparison) -> ObjectiveRecord:
    """The metric that the curves of a split show: the primary one, or the loss where that is not recorded."""
    recorded = set(curves[curves["split"] == split]["metric"])
    nats = replace(NEXT_BYTE, metric="loss", unit="nats")
    return next((o for o in (comparison.objective, NEXT_BYTE) if o.metric in recorded), nats)


def smoothing(curves: pd.DataFrame, split: str, comparison: Comparison) -> int:
    """How many consecutive records make one plotted point."""
    metric = plotted(curves, split, comparison).metric
    rows = curves[(curves["split"] == split) & (curves["metric"] == metric)]
    longest = rows.groupby(["variant", "seed"]).size().max() if len(rows) else 0
    return max(1, round(longest / POINTS))


def curve_figure(curves: pd.DataFrame, summary: pd.DataFrame, comparison: Comparison, split: str) -> Figure:
    """A split's figures against optimiser steps, every seed thin and the mean of the finished seeds thick."""
    width, shown = smoothing(curves, split, comparison), plotted(curves, split, comparison)
    runs = _runs(curves, split, width, shown.metric)
    scale_from = SCALE_FROM if shown.better == "lower" else 0
    low, high = _vertical_range(runs, finished_seeds(summary), scale_from)
    floors = shown_floors(comparison, shown.metric, split, (low, high))
    if floors:
        margin = 0.05 * (high - low)
        low, high = min(low, floors[0].value - margin), max(high, floors[0].value + margin)
    note = f"{split} split. {_what_lines_are(comparison)}"
    if width > 1:
        note += f" Each point: mean of {width} records."
    if any(curve.max() > high for seeds in runs.values() for curve in seeds.values()):
        note += f"\nThe vertical axis is cut at {high:.2f}: the losses of the first steps lie above it."
    note += beyond_the_axis(comparison, shown.metric, split, floors)
    return _panels(runs, summary, comparison, (low, high), shown.quantity, note, floors=floors)


def _panels(
    runs: Runs,
    summary: pd.DataFrame,
    comparison: Comparison,
    vertical_range: tuple[float, float],
    quantity: str,
    note: str,
    references: bool = True,
    floors: Sequence[Floor] = (),
) -> Figure:
    groups = by_kernel(comparison.variants)
    figure, panels = panels_of(groups, 4, (2.75, 4.1), (0.3, 0.4), 7, sharex=True, sharey=True)
    last = max(curve.index[-1] for seeds in runs.values() for curve in seeds.values())
    for axes, variants in panels:
        axes.set(xlim=(0, 1.02 * max(last, 1)), ylim=vertical_range)
        axes.set_xlabel(f"optimiser step\n(one step = {comparison.read_in(1)})")
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        axes.tick_params(labelbottom=True)
        if not references:
            axes.axhline(0, color=MUTED, linewidth=1.0)
        mark_floors(axes, floors)
        others = _references(variants, comparison) if references else []
        _draw_variants(axes, others, variants, runs, summary)
    name_vertical(figure, quantity)
    head(figure, comparison, note)
    return figure


def shown_floors(comparison: Comparison, metric: str, split: str, vertical_range: tuple[float, float]) -> list[Floor]:
    """The best floor that does not make the range of the curves more than twice as high; and the trigram in it."""
    low, high = vertical_range
    height = high - low
    equal = [each for each in comparison.floors_of(metric, split) if each.equal]
    *_, best = [None, *(each for each in equal if low - height < each.value < high + height)]
    if best is None:
        return []
    trigrams = (each for each in equal if each.name == "trigram" and low < each.value < high)
    return [best, *(each for each in trigrams if abs(each.value - best.value) > height / 15)]


def beyond_the_axis(comparison: Comparison, metric: str, split: str, floors: Sequence[Floor]) -> str:
    """A line of a note on the best floor, if it is not among those that are shown."""
    best = comparison.best_floor(metric, split)
    return "" if best is None or best in floors else f"\nBeyond the vertical axis: {best.name}, {best.value:.2f}."


def mark_floors(axes: Axes, floors: Sequence[Floor], named: bool = True) -> None:
    """A thin horizontal line for each floor, its name at the right end."""
    for floor in floors:
        axes.axhline(floor.value, color=MUTED, linewidth=0.7, zorder=1)
        if not named:
            continue
        place: Any = {"xy": (1, floor.value), "xycoords": ("axes fraction", "data"), "va": "center"}
        axes.annotate(floor.name, **place, xytext=(2, 0), textcoords="offset points", fontsize=7, color=MUTED)


def _draw_variants(
    axes: Axes, references: list[VariantRecord], variants: list[VariantRecord], runs: Runs, summary: pd.DataFrame
) -> None:
    """Draw the variants of a kernel and, thinner, the variants of other panels that it is measured against."""
    finished, failed = finished_seeds(summary), failures(summary)
    entries = []
    for number, variant in enumerate([*references, *variants]):
        name, look, is_reference = variant.name, variant_style(variant), variant in references
        whole = [curve for seed, curve in runs.get(name, {}).items() if seed in finished[name]]
        for seed, curve in {} if is_reference else runs.get(name, {}).items():
            if len(whole) > 1 or seed not in finished[name]:
                axes.plot(curve.index, curve, color=look["color"], linewidth=0.6)
            if seed not in finished[name]:  # a cross where it ends, at the panel's edge if that is outside
                height = min(max(float(curve.iloc[-1]), axes.get_ylim()[0]), axes.get_ylim()[1])
                cross: Any = {"color": look["color"], "markersize": 9, "markeredgecolor": "white", "zorder": 4}
                axes.plot([curve.index[-1]], [height], "X", clip_on=False, **cross)
        mean = pd.concat(whole, axis=1).dropna().mean(axis=1) if whole else pd.Series(dtype=float)
        interval = max(1, len(mean) // MARKS)
        weight = {"linewidth": 1.0, "markersize": 3.5, "markerfacecolor": "white"}
        shown = f"{legend_label(name)}{' (reference)' * is_reference}"
        remark = failed.get(name) or ("" if name in runs else "nothing to compare")
        text = f"{shown}\n({remark})" if remark else shown
        look |= weight if is_reference else {"linewidth": 1.9, "markersize": 5.5}
        (line,) = axes.plot(mean.index, mean, label=text, markevery=(number % interval, interval), **look)
        entries.append((mean.iloc[-1] if len(mean) else float("-inf"), line))
    entries.sort(key=lambda entry: -entry[0])
    handles = [line for _, line in entries]
    if any(variant.name in failed for variant in variants):
        handles += axes.plot([], [], "X", color=MUTED, markersize=8, label="a run that did not finish")
    legend_beneath(axes, handles)


def _references(variants: list[VariantRecord], comparison: Comparison) -> list[VariantRecord]:
    """Softmax attention with RoPE (or else the first softmax variant), and baselines that belong to another panel."""
    if variants[0].kernel == "softmax":
        return []
    every = comparison.variants
    softmax = sorted((v for v in every if v.kernel == "softmax"), key=lambda v: v.position != "rope-before")
    baselines = {comparison.baseline_of(variant) for variant in variants}
    return softmax[:1] + [v for v in every if v.name in baselines and v not in variants and v not in softmax[:1]]


def _runs(curves: pd.DataFrame, split: str, width: int, metric: str) -> Runs:
    """Per variant and seed the plotted curve: means of ``width`` consecutive records, at their mean step."""
    rows = curves[(curves["split"] == split) & (curves["metric"] == metric)]
    runs: Runs = {}
    grouped: Any = rows.groupby(["variant", "seed"], sort=False)
    for (name, seed), group in grouped:
        runs.setdefault(name, {})[seed] = smoothed(group, width).set_index("step")["value"]
    return runs


def smoothed(run: pd.DataFrame, width: int) -> pd.DataFrame:
    """Means of ``width`` consecutive records of a run: columns step and value."""
    ordered = run[["step", "value"]].sort_values("step").reset_index(drop=True)
    return ordered.groupby(ordered.index // width).mean()


def _vertical_range(runs: Runs, finished: dict[str, set[int]], start: float) -> tuple[float, float]:
    """Room for everything after the share ``start`` of the run, of finished runs where there are any."""
    every = [(curve, seed in finished[name]) for name, seeds in runs.items() for seed, curve in seeds.items()]
    shown = [curve for curve, is_finished in every if is_finished] or [curve for curve, _ in every]
    last = max(curve.index[-1] for curve in shown)
    late = pd.concat([curve[curve.index >= start * last] for curve in shown])
    low, high = float(late.min()), float(late.max())
    margin = 0.05 * (high - low)
    if margin <= 1e-9 * abs(high):  # they are equal, but for rounding
        margin = max(0.1, 1e-6 * abs(high))
    return low - margin, high + margin


def _what_lines_are(comparison: Comparison) -> str:
    one = len(comparison.seeds) == 1
    return "One seed: no mean, no interval." if one else "Thin: each seed. Thick: mean of the finished seeds."
