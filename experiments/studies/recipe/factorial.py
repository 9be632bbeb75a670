"""Losses and differences over the comparisons of the factorial, one for each optimiser and initial spread."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.config import Config
from experiments.judge.curves import read_curves
from experiments.judge.statistics import Estimate, estimate, finished_values
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison, VariantRecord
from experiments.studies.convergence.figures import convergence_figures
from experiments.study import Entries, read_study
from experiments.train.objectives import Objective

STUDY = read_study(Path(__file__).parent)
PAIRS = (
    ("softmax-rope", "softmax-sinusoidal"),
    ("softmax-rope", "softmax-none"),
    ("elu+1-rope-after", "elu+1-none"),
    ("elu+1-rope-after@decay=fixed", "elu+1-rope-after"),
    ("elu+1-rope-after@decay=fixed", "softmax-rope"),
)


def nothing_more(root: Path, comparison: Comparison, objective: Objective) -> list[str]:
    """What training records is all there is."""
    return []


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    return [*convergence_figures(root, curves, summary, comparison, output / "figures")]


def overview(roots: Sequence[Path]) -> Entries:
    """A row for each comparison, and one more for each where differences are shown; nothing if no run is finished."""
    losses, differences = list[dict[str, Any]](), list[dict[str, Any]]()
    for root in sorted(roots, key=_place):
        comparison = read_comparison(root)
        found = test_losses(root, comparison)
        if found.empty:
            continue
        _, _, spread = _place(root)
        head = {"data": comparison.data[0].called, "optimiser": Config(**comparison.config).optimizer, "spread": spread}
        trained = [variant for variant in comparison.variants if variant.name in found]
        losses.append(head | {variant.name: _cell(found[variant.name], variant) for variant in trained})
        there = [pair for pair in PAIRS if {*pair} <= {*found}]
        differences.append(head | {f"{a} − {b}": told(estimate([*(found[a] - found[b]).dropna()])) for a, b in there})
    if not losses:
        return []
    tables = (("losses", losses), ("differences", differences))
    return [STUDY.table(name, pd.DataFrame(rows).fillna("-")) for name, rows in tables]


def test_losses(root: Path, comparison: Comparison) -> pd.DataFrame:
    """The primary test metric at the end: a row a seed, a column a variant."""
    values = finished_values(root, comparison, read_curves(root, comparison))
    tested = values[values["metric"] == f"test_{comparison.objective.metric}"]
    found = tested.pivot(index="seed", columns="variant", values="value")
    return found[[variant.name for variant in comparison.variants if variant.name in found]]


def _cell(values: "pd.Series[float]", variant: VariantRecord) -> str:
    """Mean loss, and the learning rate where each variant has its own."""
    rate = variant.settings.get("learning_rate")
    remark = ", not tuned" if variant.not_tuned else ""
    return f"{values.mean():.3f}" + (f" (rate {rate:g}{remark})" if rate else "")


def told(found: Estimate) -> str:
    if not found.n:
        return "-"
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]" if found.has_interval else f"{found.mean:+.3f}"


def _place(root: Path) -> tuple[str, str, float]:
    """Where a comparison's row stands."""
    comparison = read_comparison(root)
    config = Config(**comparison.config)
    return comparison.data[0].called, config.optimizer, config.initial_spread
