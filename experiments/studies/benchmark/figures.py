"""The figures and the tables of a task of the benchmark."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from experiments.figures import panels
from experiments.figures.settings import by_base, curves_by_setting, looks_by_setting, setting_label
from experiments.figures.style import MUTED, draw
from experiments.judge.statistics import Estimate, estimate
from experiments.records.schema import Comparison
from experiments.studies.benchmark.measure import LONGER
from experiments.studies.length.figures import STUDY as LENGTH
from experiments.studies.length.figures import by_length_figure, by_position_figure
from experiments.studies.length.measure import IN_SHORT_WINDOWS, LOSSES, by_position, length_table, window_means
from experiments.studies.tokens.budgets import losses, table
from experiments.studies.tokens.figures import STUDY as TOKENS
from experiments.studies.tokens.figures import by_budget_figure
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)
WIDE = 0.1
"""an interval this wide is told"""


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    directory, objective = output / "figures", comparison.objective
    of_text = objective.metric != "accuracy"
    entries = (_of_text if of_text else _of_sequences)(root, directory, comparison, curves)
    recorded = curves[(curves["split"] == "validation") & (curves["metric"] == objective.metric)]
    if not recorded.empty:
        what = {"metric": objective.metric, "quantity": f"validation {objective.quantity}"}
        entry = STUDY.figure("by-step", quantity=objective.quantity, better=objective.better)
        entries.append(draw(directory, entry, curves_by_setting, curves, summary, comparison, **what))
    return entries


def _of_text(root: Path, directory: Path, comparison: Comparison, curves: pd.DataFrame) -> Entries:
    """Test losses by the bytes read, by the length of the window, and by position."""
    found, measured = losses(comparison, curves), LOSSES.read(root)
    words = {"quantity": comparison.objective.quantity, "better": comparison.objective.better}
    entries: Entries = []
    if not found.empty:
        if found["tokens"].nunique() > 1:
            entries.append(draw(directory, TOKENS.figure("by-budget", **words), by_budget_figure, found, comparison))
        entries.append(TOKENS.table("by-budget", table(found, comparison), **words))
    if measured is not None:
        means, added = window_means(measured[measured["method"] != IN_SHORT_WINDOWS]), by_position(measured)
        entries.append(draw(directory, LENGTH.figure("by-length"), by_length_figure, means, comparison))
        if not added.empty:
            entries.append(draw(directory, LENGTH.figure("by-position"), by_position_figure, added, comparison))
        entries.append(LENGTH.table("by-length", length_table(means, comparison)))
    return entries


def _of_sequences(root: Path, directory: Path, comparison: Comparison, curves: pd.DataFrame) -> Entries:
    """Accuracies by the length of the sequences and, of recall, the number of pairs."""
    found = LONGER.read(root)
    entries: Entries = []
    if found is None:
        return entries
    for pairs in sorted(found["pairs"].unique()):
        rows = found[found["pairs"] == pairs]
        words = {"of_pairs": f", {pairs} pairs" if pairs else "", "end": f"-{pairs}" if pairs else ""}
        entries.append(draw(directory, STUDY.figure("longer", **words), longer_figure, rows, comparison))
    by_pairs = " and the number of pairs" if found["pairs"].any() else ""
    return [*entries, STUDY.table("longer", longer_table(found, comparison), by_pairs=by_pairs)]


def longer_figure(found: pd.DataFrame, comparison: Comparison) -> Figure:
    """A panel per kernel and position encoding, a line per setting."""
    looks, context = looks_by_setting(comparison), comparison.config["context"]
    figure, shown_panels = panels.panels_of(by_base(comparison), 3, (3.4, 3.0), (0.3, 0.9), 6, sharex=True, sharey=True)
    panels.name_vertical(figure, "share of answers that are right")
    panels.head(figure, comparison, "new sequences. Thin: each seed. Thick: mean.")
    at = found.assign(length=found["factor"] * context)
    for axes, variants in shown_panels:
        for variant in variants:
            mine, text = at[at["variant"] == variant.name], setting_label(variant, comparison)
            panels.lines_by_seed(axes, mine, "length", "accuracy", looks[variant.name], text)
        axes.axvline(context, color=MUTED, linewidth=1, linestyle=":")
        panels.doubling_axis(axes, sorted(at["length"].unique()), "tokens of the sequences")
        axes.tick_params(labelbottom=True)
        axes.set_ylim(-0.03, 1.05)
    panels.legend_below(figure, figure.axes, 3)
    return figure


def shown(accuracy: Estimate) -> str:
    """Its mean, and its interval if that is wide."""
    low, high = max(accuracy.low, 0.0), min(accuracy.high, 1.0)
    interval = f" [{low:.0%}, {high:.0%}]" if accuracy.has_interval and high - low > WIDE else ""
    is_short_of_all = 0.995 <= accuracy.mean < 0.9995
    return f"{accuracy.mean:{'.1%' if is_short_of_all else '.0%'}}{interval}"


def longer_table(found: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """A row of strings per variant and number of pairs: the accuracy at each length."""
    context, rows = comparison.config["context"], []
    keys = found[["variant", "pairs"]].drop_duplicates()
    for variant in comparison.variants:
        for pairs in keys.loc[keys["variant"] == variant.name, "pairs"]:
            mine = found[(found["variant"] == variant.name) & (found["pairs"] == pairs)]
            row = {"variant": variant.name} | ({"pairs": str(pairs)} if pairs else {})
            row["n"] = str(mine["seed"].nunique())
            for factor in sorted(mine["factor"].unique()):
                values = mine.loc[mine["factor"] == factor, "accuracy"].tolist()
                row[f"{factor * context:,}"] = shown(estimate(values))
            rows.append(row)
    return pd.DataFrame(rows).fillna("-")
