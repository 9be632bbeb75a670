"""The figures and the tables of a task of the benchmark."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis.statistics import estimate
from experiments.figures import panels
from experiments.figures.settings import by_base, curves_by_setting, looks_by_setting, setting_label
from experiments.figures.style import MUTED, draw
from experiments.records.schema import Comparison
from experiments.studies.benchmark.measure import LONGER
from experiments.studies.length.figures import figures as length_figures
from experiments.studies.recall.answer import shown
from experiments.studies.tokens.figures import figures as budget_figures
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    if comparison.objective.metric != "accuracy":
        parts = (root, output, comparison, curves, summary)
        return [*budget_figures(*parts), *length_figures(*parts)]
    entries: Entries = []
    directory, found = output / "figures", LONGER.read(root)
    if found is not None:
        for pairs in sorted(found["pairs"].unique()):
            rows = found[found["pairs"] == pairs]
            words = {"of_pairs": f", {pairs} pairs" if pairs else "", "end": f"-{pairs}" if pairs else ""}
            entries.append(draw(directory, STUDY.figure("longer", **words), longer_figure, rows, comparison))
        by_pairs = " and the number of pairs" if found["pairs"].any() else ""
        entries.append(STUDY.table("longer", longer_table(found, comparison), by_pairs=by_pairs))
    if "validation" in set(curves["split"]):
        what = {"metric": "accuracy", "quantity": "validation accuracy"}
        entry = STUDY.figure("accuracy-by-step")
        entries.append(draw(directory, entry, curves_by_setting, curves, summary, comparison, **what))
    return entries


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
