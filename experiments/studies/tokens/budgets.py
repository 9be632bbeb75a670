"""Test losses by the budget they were reached with, the tables made of them, and what claims compare."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.config import recorded_steps
from experiments.judge.runs import Runs
from experiments.judge.samples import ReadSample, Sample, per_seed
from experiments.judge.statistics import estimate
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.show.rows import Rows

MILLION = 1e6
LOSS = "test_bits_per_byte"


def budgets(comparison: Comparison) -> dict[int, int]:
    """Tokens, rounded to a tenth of a million where there are so many, to the step at which a budget of them ends."""
    config = comparison.config
    steps = recorded_steps(
        "test", config["steps"], config["log_every"], config["evaluate_every"], config.get("budgets", "none")
    )
    tokens = {step: step * comparison.tokens_per_step for step in steps}
    return {int(round(many, -5)) if many >= MILLION / 2 else many: step for step, many in tokens.items()}


def best_floors(root: Path) -> pd.DataFrame:
    """By tokens the best of what something simple has that reads as much; columns tokens, value."""
    comparison = read_comparison(root)
    found = {
        tokens: comparison.best_floor(comparison.objective.metric, steps=step)
        for tokens, step in budgets(comparison).items()
    }
    return pd.DataFrame([(tokens, each.value) for tokens, each in found.items() if each], columns=["tokens", "value"])


def table(shown: Rows) -> pd.DataFrame | None:
    """A row of strings per variant: its loss at each budget, and what ten times as much training multiplies it by."""
    rows, comparison, curves = [], shown.comparison, shown.curves
    tests = curves[(curves["split"] == "test") & (curves["metric"] == comparison.objective.metric)]
    found = tests.assign(tokens=tests["step"].map({step: tokens for tokens, step in budgets(comparison).items()}))
    for variant in comparison.variants:
        mine = found[(found["variant"] == variant.name) & found["seed"].isin(shown.finished[variant.name])]
        row = {"variant": variant.name, "n": str(mine["seed"].nunique())}
        for tokens in sorted(found["tokens"].unique()):
            row[in_words(tokens)] = estimate(list(mine.loc[mine["tokens"] == tokens, "value"])).show(".3f")
        runs: Any = mine.groupby("seed")
        slopes = [tenfold(run.set_index("tokens")["value"]) for _, run in runs if len(run) > 1]
        rows.append(row | {"ten times as much": estimate(slopes).show(".3f")})
    return pd.DataFrame(rows) if len(found) else None


def tenfold(by_tokens: "pd.Series[float]") -> float:
    """10^b of the least-squares line log loss = a + b·log10 tokens."""
    slope, _ = np.polyfit(np.log10(by_tokens.index.to_numpy(float)), np.log10(by_tokens.to_numpy(float)), 1)
    return float(10**slope)


def in_words(tokens: int) -> str:
    """A number of tokens as a table's head has it."""
    return f"{tokens / MILLION:g} million" if tokens >= MILLION else f"{tokens:,}"


def difference_at(variant: str, other: str, millions: float) -> ReadSample:
    """The test loss of a variant minus that of another after so many million tokens, by seed."""
    return _of_budgets((variant, other), (millions,))


def change_of_difference(variant: str, other: str, first: float, last: float) -> ReadSample:
    """The same difference after ``last`` million tokens minus that after ``first``, by seed."""
    return _of_budgets((variant, other), (last, first))


def _of_budgets(variants: tuple[str, str], millions: tuple[float, ...]) -> ReadSample:
    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        ends = budgets(comparison)
        if not {int(each * MILLION) for each in millions} <= ends.keys():
            return None
        steps = [ends[int(each * MILLION)] for each in millions]

        def quantity(*numbers: Any) -> float:
            first, *rest = (np.subtract(*(run.at(LOSS, step) for run in numbers)) for step in steps)
            return float(first - sum(rest))

        return per_seed(variants, quantity)(root, comparison, runs)

    return sample
