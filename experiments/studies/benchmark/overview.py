"""The benchmark's tasks side by side: a row a variant."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from experiments.judge.statistics import estimate
from experiments.records.csv_files import NotMeasured
from experiments.records.schema import Comparison, Floor
from experiments.studies.benchmark.measure import longer
from experiments.studies.benchmark.results import (
    YARDSTICK,
    costs_of,
    losses_by_position,
    reached,
    tasks_of,
    tested_by_budget,
)
from experiments.studies.length.measure import AS_TRAINED, IN_SHORT_WINDOWS
from experiments.studies.tokens.budgets import budgets, in_words


class Column(NamedTuple):
    """One of a table: of each variant a number a seed, and maybe the best floor."""

    head: str
    values: pd.DataFrame
    """a row a seed, a column a variant"""
    pattern: str
    floor: Floor | None = None

    @property
    def beside(self) -> dict[str, float]:
        return {f"floor: {self.floor.name}": self.floor.value} if self.floor else {}


def texts(roots: Sequence[Path]) -> pd.DataFrame | None:
    """What language models reach, those first that end lowest in the first task, and what a token costs them there."""
    columns, ends = list[Column](), list[Column]()
    for root, comparison in tasks_of(roots, 1, 2):
        for tokens, values in tested_by_budget(root, comparison).items():
            floor = comparison.best_floor(comparison.objective.metric, steps=budgets(comparison)[tokens])
            columns.append(Column(f"{comparison.name}: {in_words(tokens)} bytes", values, ".3f", floor))
        ends.append(columns[-1])
        if YARDSTICK in values:
            minus = values.sub(values[YARDSTICK], axis=0).drop(columns=YARDSTICK)
            columns.append(Column(f"{comparison.name}: minus {YARDSTICK}", minus, "+.3f"))
        columns += _far(root, comparison)
        columns += _costs(comparison) if len(ends) == 1 else []
    return _table(columns, by=ends[0]) if ends else None


def sequences(roots: Sequence[Path]) -> pd.DataFrame | None:
    """The accuracies of recall, copying and state tracking, at the length of training and at the longest."""
    columns = list[Column]()
    for root, comparison in tasks_of(roots, 3, 4, 5):
        columns.append(Column(comparison.name, reached(root, comparison), ".1%", comparison.best_floor("accuracy")))
        try:
            found = longer(root)
        except NotMeasured:
            continue
        most = found[(found["length"] == found["length"].max()) & (found["pairs"] == found["pairs"].max())]
        wide = most.pivot(index="seed", columns="variant", values="value")
        columns.append(Column(f"{comparison.name}: {found['length'].max():,} tokens", wide, ".1%"))
    return _table(columns, by=columns[0], highest_first=True) if columns else None


def _far(root: Path, comparison: Comparison) -> Iterator[Column]:
    """The losses at the positions that are farthest beyond the length of training, and without what lies before it."""
    context = comparison.config["context"]
    for method, more in (AS_TRAINED, ""), (IN_SHORT_WINDOWS, f", in windows of {context:,}"):
        *_, (first, last) = [(-1, -1), *(parts := losses_by_position(root, method))]
        if first >= context:
            yield Column(f"{comparison.name}: positions {first:,} to {last:,}{more}", parts[first, last], ".3f")


def _costs(comparison: Comparison) -> Iterator[Column]:
    """What a variant carries from token to token, and computes for each."""
    table = pd.DataFrame({each.name: costs_of(each, comparison) for each in comparison.variants}, dtype=float)
    yield Column("numbers of the state", table.loc[[0]], ",.0f")
    yield Column("MFLOPs a token", table.loc[[1]] / 1e6, ".2f")


def _table(columns: list[Column], by: Column, highest_first: bool = False) -> pd.DataFrame | None:
    """Mean and interval of each column over the seeds, in the order of one; None if no run has ended."""
    table = pd.DataFrame({each.head: _cells(each) for each in columns}).dropna(axis="columns", how="all").fillna("-")
    ends = pd.Series({**by.values.mean(), **by.beside}, dtype=float).sort_values(ascending=not highest_first)
    found = table.reindex([*ends.index, *table.index.difference(ends.index)])
    return found.rename_axis("variant").reset_index() if len(found) else None


def _cells(column: Column) -> "pd.Series[str]":
    found = {str(name): estimate([*values.dropna()]) for name, values in column.values.items()}
    ends = (0, 1) if "%" in column.pattern else ()
    cells = {name: each.show(column.pattern, *ends) for name, each in found.items() if each.n}
    return pd.Series(cells | {name: f"{value:{column.pattern}}" for name, value in column.beside.items()}, dtype=str)
