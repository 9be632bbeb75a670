"""Is the unrotated denominator of RoFormer's eq. 19 needed for stability, and what do its weights look like?

python -m experiments run denominator
"""

from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.statistics import estimate, finished_values, run_states
from experiments.figures.settings import curves_by_setting, final_by_setting
from experiments.figures.style import FigureEntry, TableEntry, draw
from experiments.records.csv_files import to_csv
from experiments.records.files import write_atomically
from experiments.records.schema import Comparison
from experiments.studies.denominator.claims import CLAIMS, KERNELS
from experiments.studies.denominator.initial import (
    ALL_KEYS,
    INITIAL_FEATURES,
    INITIAL_HEAD_DIM,
    INITIAL_LENGTH,
    initial_table,
    read_initial,
)
from experiments.studies.denominator.spikes import BEFORE, HEIGHT, spike_share
from experiments.training.objectives import NextToken

__all__ = ["CLAIMS", "METHOD", "NOT_SHOWN", "QUESTION", "VARIANTS", "figures", "measure"]

QUESTION = (
    "RoFormer's eq. 19 rotates the mapped queries and keys in the numerator only: a rotated denominator could be zero. "
    "The price is weights that can be negative and need not sum to one. Is the unrotated denominator needed? Linear "
    "attention with RoPE after its map is trained with the denominator unrotated (eq. 19), rotated (the sum of the "
    "numerator's own weights) and without one."
)
METHOD = (
    "Every variant is trained from equal weights on equal batches. At every evaluation the attention weights of all "
    "layers "
    "and heads are worked out in full on some validation windows: the share of negative weights, the smallest and "
    "largest row sum, the share of denominators that are zero or below. A spike is a recorded training loss that lies "
    f"at least {HEIGHT} bits per byte above the mean of the {BEFORE} records before it. A loss or gradient that is not "
    "finite ends the run, and it counts as diverged. Gradients are clipped at the norm that the configuration says, "
    "and a query whose denominator is exactly zero gets zeros. Apart from training, the same is measured for queries "
    "and keys with independent N(0, 1) entries, which are much larger than those that a model begins with (the first "
    "point of each figure)."
)
NOT_SHOWN = (
    "Longer training, larger models, other learning rates (one serves all variants, unless there is a table of them) "
    "and "
    "lower precision, all of which can make an unstable variant fail or a stable one look worse than it is; clipped "
    "gradients hide much of it. SANA-Video's setting (video, no causal mask) is another. Denominators are looked at "
    "on a few windows at each evaluation, so a zero crossing between two of them is not seen."
)

VARIANTS = tuple(
    f"{kernel}-rope-after{setting}"
    for kernel in KERNELS
    for setting in ("", "@denominator=rotated", "@denominator=none")
)


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write initial.csv; returns nothing, as all of it can be measured."""
    write_atomically(root / "initial.csv", to_csv(initial_table(), "%.9g"))
    return []


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    entries: list[FigureEntry | TableEntry] = []
    initial = read_initial(root)
    if initial is not None:
        entries.append(TableEntry("Queries and keys of N(0, 1)", _initial_shown(initial), _INITIAL, uses_data=False))
    directory = output / "figures"
    values = finished_values(root, comparison, curves)
    if not values.empty:
        entries.append(draw(directory, _FINAL, final_by_setting, values, summary, comparison))
    for stem, (metric, quantity, title, caption) in _STATISTICS.items():
        if (curves["metric"] == metric).any():
            entry = FigureEntry(stem, title, caption)
            what = {"metric": metric, "quantity": quantity, "logarithmic": metric.endswith("row_sum")}
            entries.append(draw(directory, entry, curves_by_setting, curves, summary, comparison, **what))
    entries.append(TableEntry("Failures and spikes", stability_table(root, comparison, curves), _STABILITY))
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


_INITIAL = (
    f"Eq. 19 without any training: N = {INITIAL_LENGTH}, D = {INITIAL_HEAD_DIM}, FAVOR+ with M = "
    f"{INITIAL_FEATURES} features, queries and keys with independent N(0, 1) entries. Mean over draws of inputs and "
    "features, in brackets the smallest and the largest. Expected: one draw that was worked out before this code was "
    "written; it says causal, but its row sums are those of queries that see all keys: a causal query that sees one "
    "key has the row sum 1, and one that sees few has a FAVOR+ denominator that may be tiny."
)
_FINAL = FigureEntry(
    "final-loss",
    "Loss after training, by denominator",
    "Test bits per byte after the last step. Runs that failed have no test loss; they are counted beside the name.",
)
_STATISTICS = {
    "nonpositive-denominators": (
        "nonpositive_denominators",
        "share of denominators ≤ 0",
        "Denominators that are zero or below, during training",
        "Share of the denominators of all layers, heads and queries that are not above zero. An unrotated denominator "
        "is a sum of positive terms and cannot be; a variant without a denominator has no line.",
    ),
    "negative-weights": (
        "negative_weights",
        "share of negative weights",
        "Negative weights during training",
        "Share of the weights of visible keys that are below zero.",
    ),
    "largest-row-sum": (
        "largest_row_sum",
        "largest row sum",
        "The largest row sum during training",
        "Largest sum of a query's weights, over all layers, heads and queries; 1 for a rotated denominator, up to "
        "rounding. The vertical axis is linear between -1 and 1 and logarithmic beyond.",
    ),
    "smallest-row-sum": (
        "smallest_row_sum",
        "smallest row sum",
        "The smallest row sum during training",
        "Smallest sum of a query's weights, over all layers, heads and queries. The vertical axis is linear between "
        "-1 and 1 and logarithmic beyond.",
    ),
}
_STABILITY = (
    "Failed: the loss or a gradient was not finite, which ends the run before the update. A spike is a recorded "
    f"training loss at least {HEIGHT} bits per byte above the mean of the {BEFORE} records before it; the share is the "
    "mean over finished seeds."
)
