"""The figures and tables of the denominator study."""

from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.statistics import estimate, finished_values, run_states
from experiments.figures.settings import curves_by_setting, final_by_setting
from experiments.figures.style import draw
from experiments.records.schema import Comparison
from experiments.studies.denominator.measure import ALL_KEYS, BEFORE, INITIAL_LENGTH, read_initial, spike_share
from experiments.studies.denominator.study import STUDY
from experiments.study import FigureEntry, TableEntry


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    entries: list[FigureEntry | TableEntry] = []
    initial = read_initial(root)
    if initial is not None:
        entries.append(STUDY.table("initial", _initial_shown(initial)))
    directory = output / "figures"
    values = finished_values(root, comparison, curves)
    if not values.empty:
        entries.append(draw(directory, STUDY.figure("final-loss"), final_by_setting, values, summary, comparison))
    for stem, words in STUDY.words["figures"].items():
        metric = words.get("metric")
        if metric and (curves["metric"] == metric).any():
            what = {"metric": metric, "quantity": words["quantity"], "logarithmic": metric.endswith("row_sum")}
            entry = STUDY.figure(stem)
            entries.append(draw(directory, entry, curves_by_setting, curves, summary, comparison, **what))
    entries.append(STUDY.table("stability", stability_table(root, comparison, curves)))
    return entries


def stability_table(root: Path, comparison: Comparison, curves: pd.DataFrame) -> pd.DataFrame:
    """A row of strings per variant: runs, failures, spikes in the training loss."""
    states = run_states(root, comparison, curves)
    rows = []
    for variant in comparison.variants:
        mine = states[states["variant"] == variant.name]
        shares = []
        for seed in mine[mine["state"] == "done"]["seed"]:
            losses = _training_losses(curves, variant.name, seed)
            if len(losses) > BEFORE:
                shares.append(spike_share(losses))
        found = estimate(shares)
        rows.append(
            {
                "variant": variant.name,
                "runs": str(len(mine)),
                "failed": str((mine["state"] == "failed").sum()),
                "records that are spikes": "-" if not shares else f"{found.mean:.2%} (worst seed {max(shares):.2%})",
            }
        )
    return pd.DataFrame(rows)


def _initial_shown(initial: pd.DataFrame) -> pd.DataFrame:
    def shown(values: "pd.Series[float]", pattern: str) -> str:
        return f"{values.mean():{pattern}} ({values.min():{pattern}} to {values.max():{pattern}})"

    rows = []
    for (name, sees), mine in initial.groupby(["feature_map", "sees"], sort=False):
        rows.append(
            {
                "feature map": name,
                "a query sees": sees,
                "draws": str(len(mine)),
                "negative weights": shown(mine["negative_weights"], ".1%"),
                "smallest row sum": shown(mine["smallest_row_sum"], ".2f"),
                "largest row sum": shown(mine["largest_row_sum"], ".2f"),
                f"rotated denominators ≤ 0, of {INITIAL_LENGTH}": shown(
                    mine["rotated_denominators_not_above_zero"], ".0f"
                ),
                "expected": EXPECTED.get((name, sees), "-"),
            }
        )
    return pd.DataFrame(rows)


EXPECTED: dict[Any, str] = {
    ("favor+", ALL_KEYS): "29.8 % negative, sums -0.61 to 1.41, 112 of 1024 denominators",
    ("elu+1", ALL_KEYS): "3.4 % negative, sums 0.15 to 0.46, no denominator",
}
"""one draw of our own, worked out before this code was written; nothing was published"""


def _training_losses(curves: pd.DataFrame, variant: str, seed: int) -> "pd.Series[float]":
    rows = curves[(curves["variant"] == variant) & (curves["seed"] == seed)]
    rows = rows[(rows["split"] == "train") & (rows["metric"] == "bits_per_byte")]
    return rows.set_index("step")["value"].sort_index()
