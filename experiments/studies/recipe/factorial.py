"""Losses and differences over the comparisons of the factorial, one for each optimiser and initial spread."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from experiments.config import Config
from experiments.judge.curves import read_curves
from experiments.judge.statistics import estimate, finished_values
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison, VariantRecord
from experiments.show.words import with_interval
from experiments.train.objectives import Objective

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


def losses(roots: Sequence[Path]) -> pd.DataFrame | None:
    """A row for each comparison with a finished run: the mean loss of each variant, and its own learning rate."""

    def cells(found: pd.DataFrame, comparison: Comparison) -> dict[str, str]:
        return {each.name: _cell(found[each.name], each) for each in comparison.variants if each.name in found}

    return _rows(roots, cells)


def differences(roots: Sequence[Path]) -> pd.DataFrame | None:
    """The same of the differences of pairs."""

    def cells(found: pd.DataFrame, comparison: Comparison) -> dict[str, str]:
        there = [pair for pair in PAIRS if {*pair} <= {*found}]
        apart = {f"{a} − {b}": estimate([*(found[a] - found[b]).dropna()]) for a, b in there}
        return {
            name: with_interval(each.mean, each.low, each.high, "+.3f") if each.n else "-"
            for name, each in apart.items()
        }

    return _rows(roots, cells)


def _rows(roots: Sequence[Path], cells: Callable[[pd.DataFrame, Comparison], dict[str, str]]) -> pd.DataFrame | None:
    rows = []
    for root in sorted(roots, key=_place):
        comparison = read_comparison(root)
        found = test_losses(root, comparison)
        if len(found):
            head = dict(zip(("data", "optimiser", "spread"), _place(root), strict=True))
            rows.append(head | cells(found, comparison))
    return pd.DataFrame(rows).fillna("-") if rows else None


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


def _place(root: Path) -> tuple[str, str, float]:
    """Where a comparison's row stands."""
    comparison = read_comparison(root)
    config = Config(**comparison.config)
    return comparison.data[0].called, config.optimizer, config.initial_spread
