"""The figures and the table of the study of budgets."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures import panels
from experiments.figures.settings import LOOKS, by_base, looks_by_setting, setting_label
from experiments.figures.style import MUTED, draw
from experiments.judge.statistics import estimates
from experiments.records.schema import Comparison
from experiments.studies.convergence.figures import convergence_figures
from experiments.studies.decay.figures import attention_figures
from experiments.studies.decay.measure import ATTENTION
from experiments.studies.tokens.budgets import budgets, in_words, losses, table
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)
REFERENCE = "softmax-rope"
BEST, ALIKE = "elu+1-rope-after@decay=fixed", "@decay=gate@local_conv=4"
COMPARED = {
    "elu+1, RoPE after, fixed decay − softmax, RoPE": (BEST, REFERENCE),
    "FAVOR+, RoPE before, fixed decay − softmax, RoPE": ("favor+-rope-before@decay=fixed", REFERENCE),
    "elu+1, fixed decay: RoPE after − none": (BEST, "elu+1-none@decay=fixed"),
    "elu+1 − softmax, both with RoPE, gate, convolution": (f"elu+1-rope-after{ALIKE}", f"{REFERENCE}{ALIKE}"),
}
"""the differences that the hypotheses are about, as a figure names them"""
APART = 0.015
"""of the axis, between the marks of two differences"""


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    directory, found = output / "figures", losses(comparison, curves)
    words = {"quantity": comparison.objective.quantity, "better": comparison.objective.better}
    entries: Entries = []
    if not found.empty:
        entries.append(draw(directory, STUDY.figure("by-budget", **words), by_budget_figure, found, comparison))
        if compared := differences(found):
            entry = STUDY.figure("differences", **words)
            entries.append(draw(directory, entry, differences_figure, compared, comparison))
        entries.append(STUDY.table("by-budget", table(found, comparison), **words))
    entries += convergence_figures(root, curves, summary, comparison, directory)
    return [*entries, *attention_figures(directory, comparison, ATTENTION.read(root))]


def differences(found: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Of each pair of ``COMPARED`` that was trained: mean and interval of the difference by tokens."""
    wide = found.pivot(index=["seed", "tokens"], columns="variant", values="value")
    pairs = {words: pair for words, pair in COMPARED.items() if set(pair) <= set(wide.columns)}
    apart = {words: (wide[one] - wide[other]).dropna().rename("apart") for words, (one, other) in pairs.items()}
    return {words: estimates(values.reset_index(), "tokens", "apart") for words, values in apart.items() if len(values)}


def by_budget_figure(found: pd.DataFrame, comparison: Comparison) -> Figure:
    """A panel per kernel and position encoding, a line per setting, all against the reference."""
    groups, looks = by_base(comparison), looks_by_setting(comparison)
    figure, shown = panels.panels_of(groups, 3, (3.65, 4.1), (0.3, 0.3), 6, sharey=True)
    panels.name_vertical(figure, f"test {comparison.objective.quantity}")
    panels.head(figure, comparison, "test split. Thin: each seed. Thick: mean.")
    reference = found[found["variant"] == REFERENCE].groupby("tokens")["value"].mean()
    best = {
        tokens: floor.value
        for tokens, step in budgets(comparison).items()
        if (floor := comparison.best_floor(comparison.objective.metric, steps=step))
    }
    for axes, variants in shown:
        if best:
            axes.plot(list(best), list(best.values()), color=MUTED, linewidth=0.7, label="best floor")
        if REFERENCE not in [variant.name for variant in variants]:
            axes.plot(reference.index, reference, color=MUTED, linewidth=1, label=REFERENCE)
        for variant in variants:
            mine, text = found[found["variant"] == variant.name], setting_label(variant, comparison)
            panels.lines_by_seed(axes, mine, "tokens", "value", looks[variant.name], text)
        _budgets_axis(axes, sorted(found["tokens"].unique()))
    panels.legends_beneath(figure, figure.axes)
    return figure


def differences_figure(compared: dict[str, pd.DataFrame], comparison: Comparison) -> Figure:
    """A line with intervals for each pair."""
    figure, shown = panels.panels_of({"": compared}, 1, (6.6, 3.6))
    panels.head(figure, comparison, "test split. Mean and 95 % interval.")
    for axes, pairs in shown:
        axes.axhline(0, color=MUTED, linewidth=1)
        ticks = sorted({tokens for rows in pairs.values() for tokens in rows.index})
        for place, (look, (words, rows)) in enumerate(zip(LOOKS, pairs.items(), strict=False)):
            # Side by side, so that no interval covers another.
            beside = rows.index * (ticks[-1] / ticks[0]) ** (APART * (place - (len(pairs) - 1) / 2))
            axes.plot(beside, rows["mean"], **look, label=words)
            panels.marks_with_intervals(axes, beside, rows, **look | {"linestyle": "none"})
        axes.set_ylabel(comparison.objective.quantity)
        _budgets_axis(axes, ticks)
    panels.legend_below(figure, figure.axes, 1)
    return figure


def _budgets_axis(axes: Axes, ticks: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(ticks, [in_words(tick).replace(" ", "\n") for tick in ticks])
    axes.minorticks_off()
    axes.margins(x=0.12)  # or the last label of a panel touches the first of the next
    axes.set_xlabel("tokens of training")
    if any(later < 3 * earlier for earlier, later in pairwise(ticks)):
        axes.tick_params(axis="x", rotation=30)
