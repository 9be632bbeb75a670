"""The figures and the table of the study of state tracking."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis.statistics import estimate
from experiments.figures import panels
from experiments.figures.settings import by_base, curves_by_setting, looks_by_setting, setting_label
from experiments.figures.style import MUTED, draw
from experiments.records.schema import Comparison
from experiments.studies.recall.answer import shown
from experiments.studies.state_tracking.measure import ACCURACIES, FACTORS, guessing
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    found, directory = ACCURACIES.read(root), output / "figures"
    entries: Entries = []
    if found is not None:
        entries.append(draw(directory, STUDY.figure("by-length"), by_length_figure, found, comparison))
        entries.append(STUDY.table("by-length", by_length_table(found, comparison)))
    recorded = curves[(curves["metric"] == "accuracy") & (curves["split"] == "validation")]
    if not recorded.empty:
        what = {"metric": "accuracy", "quantity": "validation accuracy"}
        entry = STUDY.figure("accuracy-by-step")
        entries.append(draw(directory, entry, curves_by_setting, curves, summary, comparison, **what))
    return entries


def by_length_figure(found: pd.DataFrame, comparison: Comparison) -> Figure:
    """A panel per kernel and position encoding, a line per setting."""
    looks = looks_by_setting(comparison)
    figure, shown_panels = panels.panels_of(by_base(comparison), 3, (3.4, 3.0), (0.3, 0.9), 6, sharex=True, sharey=True)
    panels.name_vertical(figure, "share of products that are right")
    panels.head(figure, comparison, "new sequences. Thin: each seed. Thick: mean. Dotted: guessing.")
    ends = [factor * comparison.config["context"] for factor in FACTORS]
    at = found.assign(last=found["factor"].map(dict(zip(FACTORS, ends, strict=True))))
    for axes, variants in shown_panels:
        for variant in variants:
            mine, text = at[at["variant"] == variant.name], setting_label(variant, comparison)
            panels.lines_by_seed(axes, mine, "last", "accuracy", looks[variant.name], text)
        axes.axhline(guessing(comparison), color=MUTED, linewidth=1, linestyle=":")
        panels.doubling_axis(axes, ends, "last position of the range")
        axes.tick_params(labelbottom=True)
        axes.set_ylim(-0.03, 1.05)
    panels.legend_below(figure, figure.axes, 3)
    return figure


def by_length_table(found: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """A row of strings per variant: the accuracy in each range of positions."""
    context = comparison.config["context"]
    heads = {factor: f"to {factor * context}" for factor in FACTORS}
    rows = []
    for variant in comparison.variants:
        mine = found[found["variant"] == variant.name]
        cells = {head: mine.loc[mine["factor"] == factor, "accuracy"].tolist() for factor, head in heads.items()}
        shares = {head: shown(estimate(values)) if values else "-" for head, values in cells.items()}
        rows.append({"variant": variant.name, "n": str(mine["seed"].nunique())} | shares)
    return pd.DataFrame(rows)
