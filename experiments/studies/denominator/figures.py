"""The figures and tables of the denominator study."""

from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.statistics import estimate, finished_values, run_states
from experiments.figures.settings import curves_by_setting, loss_entries
from experiments.figures.style import draw
from experiments.records.schema import Comparison
from experiments.studies.denominator.measure import ALL_KEYS, BEFORE, INITIAL, INITIAL_LENGTH, spike_share
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)
EXPECTED: dict[Any, str] = {
    ("favor+", ALL_KEYS): "29.8 % negative, sums -0.61 to 1.41, 112 of 1024 denominators",
    ("elu+1", ALL_KEYS): "3.4 % negative, sums 0.15 to 0.46, no denominator",
}
"""one draw of our own, worked out before this code was written; nothing was published"""


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    initial = INITIAL.read(root)
    entries: Entries = [] if initial is None else [STUDY.table("initial", _initial_shown(initial))]
    directory = output / "figures"
    entries += loss_entries(STUDY, directory, finished_values(root, comparison, curves), summary, comparison)
    for stem, words in STUDY.words["figures"].items():
        metric = words.get("metric")
        if metric and (curves["metric"] == metric).any():
            what = {"metric": metric, "quantity": words["quantity"], "logarithmic": metric.endswith("row_sum")}
            entry = STUDY.figure(stem)
            entries.append(draw(directory, entry, curves_by_setting, curves, summary, comparison, **what))
    return [*entries, STUDY.table("stability", stability_table(root, comparison, curves))]


def stability_table(root: Path, comparison: Comparison, curves: pd.DataFrame) -> pd.DataFrame:
    """A row of strings per variant: runs, failures, spikes in the training loss."""
    states = run_states(root, comparison, curves)
    losses = curves[(curves["split"] == "train") & (curves["metric"] == "bits_per_byte")]
    by_run = {run: rows.set_index("step")["value"].sort_index() for run, rows in losses.groupby(["variant", "seed"])}
    rows = []
    for variant in comparison.variants:
        mine = states[states["variant"] == variant.name]
        done = [(variant.name, seed) for seed in mine[mine["state"] == "done"]["seed"]]
        shares = [spike_share(by_run[run]) for run in done if run in by_run and len(by_run[run]) > BEFORE]
        spikes = f"{estimate(shares).mean:.2%} (worst seed {max(shares):.2%})" if shares else "-"
        failed = str((mine["state"] == "failed").sum())
        rows.append((variant.name, str(len(mine)), failed, spikes))
    return pd.DataFrame(rows, columns=["variant", "runs", "failed", "records that are spikes"])


def _initial_shown(initial: pd.DataFrame) -> pd.DataFrame:
    columns = {
        "negative weights": ("negative_weights", ".1%"),
        "smallest row sum": ("smallest_row_sum", ".2f"),
        "largest row sum": ("largest_row_sum", ".2f"),
        f"rotated denominators ≤ 0, of {INITIAL_LENGTH}": ("rotated_denominators_not_above_zero", ".0f"),
    }
    rows = []
    for (name, sees), mine in initial.groupby(["feature_map", "sees"], sort=False):
        row = {"feature map": name, "a query sees": sees, "draws": str(len(mine))}
        for title, (column, pattern) in columns.items():
            mean, least, most = (f"{value:{pattern}}" for value in mine[column].agg(["mean", "min", "max"]))
            row[title] = f"{mean} ({least} to {most})"
        rows.append(row | {"expected": EXPECTED.get((name, sees), "-")})
    return pd.DataFrame(rows)
