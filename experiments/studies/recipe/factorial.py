"""Losses and differences over the comparisons of the factorial, one for each optimiser and initial spread."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from experiments.judge.curves import read_curves
from experiments.judge.statistics import estimate, finished_values
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison, VariantRecord
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

    def cell(values: "pd.Series[float]", variant: VariantRecord) -> str:
        rate, remark = variant.settings.get("learning_rate"), ", not tuned" if variant.not_tuned else ""
        return f"{values.mean():.3f}" + (f" (rate {rate:g}{remark})" if rate else "")

    return _rows(
        roots, lambda found, variants: {name: cell(found[name], variants[name]) for name in variants if name in found}
    )


def differences(roots: Sequence[Path]) -> pd.DataFrame | None:
    """The same of the differences of pairs."""

    def cells(found: pd.DataFrame, variants: object) -> dict[str, str]:
        pairs = {f"{a} − {b}": found[a] - found[b] for a, b in PAIRS if {a, b} <= {*found}}
        return {name: estimate([*values.dropna()]).show("+.3f") for name, values in pairs.items()}

    return _rows(roots, cells)


def _rows(
    roots: Sequence[Path], cells: Callable[[pd.DataFrame, dict[str, VariantRecord]], dict[str, str]]
) -> pd.DataFrame | None:
    """A row for each comparison with a finished run: where it stands, and the cells of its losses and variants."""
    rows = []
    for root in roots:
        comparison = read_comparison(root)
        found, config = test_losses(root, comparison), comparison.config
        if len(found):
            optimiser = ", ".join([config["optimizer"], *(each.module for each in comparison.plugins)])
            head = {"data": comparison.data[0].called, "optimiser": optimiser, "spread": config["initial_spread"]}
            rows.append(head | cells(found, {variant.name: variant for variant in comparison.variants}))
    return pd.DataFrame(rows).fillna("-").sort_values(["data", "optimiser", "spread"]) if rows else None


def test_losses(root: Path, comparison: Comparison) -> pd.DataFrame:
    """The primary test metric at the end: a row a seed, a column a variant."""
    values = finished_values(root, comparison, read_curves(root, comparison))
    tested = values[values["metric"] == f"test_{comparison.objective.metric}"]
    found = tested.pivot(index="seed", columns="variant", values="value")
    return found[[variant.name for variant in comparison.variants if variant.name in found]]
