"""The figures of a convergence comparison, with the words that say how to read each."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis.statistics import run_values
from experiments.figures.curves import curve_figure, finished_seeds, gain_figure, gains, plotted, smoothing
from experiments.figures.dots import final_figure, steps_figure, throughput_figure
from experiments.figures.style import FigureEntry, draw
from experiments.records.schema import Comparison

HOW_TO_READ_CURVES = (
    "One panel per attention kernel, all on one vertical scale; {better} is better. Line style and marker tell how a "
    "variant "
    "is told positions; variants are listed in the order in which their curves end. Thin lines with hollow markers are "
    "references from another panel. "
)


def convergence_figures(
    curves: pd.DataFrame, summary: pd.DataFrame, comparison: Comparison, directory: Path
) -> list[FigureEntry]:
    """Draw and save the figures of a comparison of training runs into ``directory``, and return their entries.

    ``curves`` and ``summary`` are the tables of curves.csv and summary.csv. Curves of which nothing was recorded
    are left out, and so are the final figures as long as no run finished; a variant that failed is named in every
    figure.
    """
    finished = {(name, seed) for name, seeds in finished_seeds(summary).items() for seed in seeds}
    values = run_values(curves, comparison, finished)
    recorded = set(curves["split"])
    tables = (curves, summary, comparison)
    entries = []
    if "validation" in recorded:
        entries.append(draw(directory, _validation(comparison), curve_figure, *tables, "validation"))
    if gains(curves, summary, comparison):
        entries.append(draw(directory, _gain(comparison), gain_figure, *tables))
    if "train" in recorded:
        entries.append(draw(directory, _training(curves, comparison), curve_figure, *tables, "train"))
    if values.empty:
        return entries
    dots: list[tuple[FigureEntry, Callable[..., Figure]]] = [
        (_final(comparison), final_figure),
        (_steps(comparison), steps_figure),
        (_throughput(), throughput_figure),
    ]
    return entries + [draw(directory, entry, make, values, summary, comparison) for entry, make in dots]


def _seeds(comparison: Comparison) -> str:
    seeds = len(comparison.seeds)
    if seeds == 1:
        return "There is one seed: no mean and no interval, so small differences mean nothing."
    return f"Thin lines without markers are the {seeds} seeds, the thick line is the mean of those that finished."


def _word(comparison: Comparison) -> str:
    metric = comparison.objective.metric
    return "loss" if metric == "bits_per_byte" else metric.replace("_", " ")


def _validation(comparison: Comparison) -> FigureEntry:
    config = comparison.config
    return FigureEntry(
        "validation",
        f"Validation {_word(comparison)} during training",
        f"{HOW_TO_READ_CURVES.format(better=comparison.objective.better)}{_seeds(comparison)} Each point is the "
        f"{_word(comparison)} on the same {comparison.evaluated_windows['validation']} "
        f"windows of {config['context']} tokens of the validation split. A cross marks where a failed run ended.",
    )


def _gain(comparison: Comparison) -> FigureEntry:
    return FigureEntry(
        "validation-gain",
        "Gain over the baseline during training",
        f"Validation {comparison.objective.quantity} minus those of the same kernel without positions, at the same "
        f"step of the same seed ({comparison.objective.where_better}). Taking the difference seed by seed removes what "
        "the batches and the initial weights do to both; what remains may be the learning rate too, where each variant "
        f"has its own. {_seeds(comparison)} Only seeds that finished in the baseline "
        "have a difference.",
    )


def _training(curves: pd.DataFrame, comparison: Comparison) -> FigureEntry:
    records, shown = smoothing(curves, "train", comparison), plotted(curves, "train", comparison)
    smoothed = f"Smoothed: each point is the mean of {records} consecutive records." if records > 1 else "Not smoothed."
    return FigureEntry(
        "training",
        "Training loss",
        f"{HOW_TO_READ_CURVES.format(better=shown.better)}{_seeds(comparison)} The loss is that of single batches, "
        f"recorded every {comparison.config['log_every']} steps; variants of one seed see the same batches, so their "
        f"ups and downs coincide. {smoothed}",
    )


def _final(comparison: Comparison) -> FigureEntry:
    return FigureEntry(
        "final",
        f"{_word(comparison).capitalize()} on the test split after training",
        f"Left: test {comparison.objective.quantity}; {comparison.objective.better} is better. Right: the same minus "
        "that of the variant's baseline, the same kernel without positions, seed by seed; an interval that keeps clear "
        "of the line at 0 is a difference that the seeds agree on. The right panel is the one to judge by: seeds share "
        "their batches and initial weights, so much of the spread on the left is common to all variants.",
    )


def _steps(comparison: Comparison) -> FigureEntry:
    config = comparison.config
    return FigureEntry(
        "steps-to-baseline",
        "How soon a variant reaches its baseline's final loss",
        "Steps until the first evaluation at or below the validation loss with which the same seed's baseline (the "
        "same kernel without positions) ends; farther left is faster. The loss is evaluated every "
        f"{config['evaluate_every']} steps ({config['evaluate_every'] * comparison.tokens_per_step:,} tokens), so "
        "differences below that are not resolved. A hollow arrow at the end of the run stands for seeds that never got "
        "there; a mean is drawn only if all seeds did. Intervals are cut at 0; a baseline has none against itself.",
    )


def _throughput() -> FigureEntry:
    return FigureEntry(
        "throughput",
        "Training throughput",
        "Median tokens per second of each run's training records, on the machine named under Environment; farther "
        "right is faster. Runs that ran at the same time shared that machine, so read this as a rough cost, not as a "
        "speed benchmark.",
    )
