"""The benchmark's tasks side by side: a row a variant."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from experiments.config import Config
from experiments.judge.curves import read_curves
from experiments.judge.statistics import estimate, run_states, with_interval
from experiments.records.csv_files import NotMeasured
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison, Floor
from experiments.studies.benchmark.definition import read_benchmark
from experiments.studies.benchmark.measure import longer
from experiments.studies.length.measure import AS_TRAINED, LOSSES
from experiments.studies.tokens.budgets import budgets, in_words
from experiments.train.costs import costs
from experiments.train.models import Shape
from experiments.variants import get_variant

YARDSTICK = "softmax-rope"
"""what other variants are compared with"""


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
    for root, comparison in _tasks(roots, questions=(1, 2)):
        for tokens, values in tested_by_budget(root, comparison).items():
            floor = comparison.best_floor(comparison.objective.metric, steps=budgets(comparison)[tokens])
            columns.append(Column(f"{comparison.name}: {in_words(tokens)} bytes", values, ".3f", floor))
        ends.append(columns[-1])
        if YARDSTICK in values:
            minus = values.sub(values[YARDSTICK], axis=0).drop(columns=YARDSTICK)
            columns.append(Column(f"{comparison.name}: minus {YARDSTICK}", minus, "+.3f"))
        columns += _far(root, comparison)
        if len(ends) == 1:
            columns += _costs(comparison)
    return _table(columns, by=ends[0]) if ends else None


def sequences(roots: Sequence[Path]) -> pd.DataFrame | None:
    """The accuracies of recall, copying and state tracking, at the length of training and at the longest."""
    columns = list[Column]()
    for root, comparison in _tasks(roots, questions=(3, 4, 5)):
        values = [*tested_by_budget(root, comparison).values()][-1]
        columns.append(Column(comparison.name, values, ".1%", comparison.best_floor("accuracy")))
        try:
            found = longer(root)
        except NotMeasured:
            continue
        most = found[(found["length"] == found["length"].max()) & (found["pairs"] == found["pairs"].max())]
        wide = most.pivot(index="seed", columns="variant", values="value")
        columns.append(Column(f"{comparison.name}: {found['length'].max():,} tokens", wide, ".1%"))
    return _table(columns, by=columns[0], highest_first=True) if columns else None


def _tasks(roots: Sequence[Path], questions: tuple[int, ...]) -> Iterator[tuple[Path, Comparison]]:
    """The comparisons that answer these questions, in the order of the tasks, but searches of learning rates."""
    there = {comparison.name: (root, comparison) for root in roots for comparison in [read_comparison(root)]}
    tasks = read_benchmark().tasks
    searches = {task.rates for task in tasks.values()}
    for name, task in tasks.items():
        if name in there and task.question in questions and name not in searches and not task.neighbours_of:
            yield there[name]


def tested_by_budget(root: Path, comparison: Comparison) -> dict[int, pd.DataFrame]:
    """By tokens of training what finished runs have on the test split: a row a seed, a column a variant."""
    curves = read_curves(root, comparison)
    states = run_states(root, comparison, curves)
    done = states.loc[states["state"] == "done", ["variant", "seed"]]
    tests = curves[(curves["split"] == "test") & (curves["metric"] == comparison.objective.metric)].merge(done)
    return {
        tokens: tests[tests["step"] == step].pivot(index="seed", columns="variant", values="value")
        for tokens, step in budgets(comparison).items()
    }


def losses_by_position(root: Path) -> dict[tuple[int, int], pd.DataFrame]:
    """The same by the first and the last position of each part of the longest windows; empty if not measured."""
    try:
        found = LOSSES.read(root)
    except NotMeasured:
        return {}
    found = found[(found["method"] == AS_TRAINED) & (found["length"] == found["length"].max())]
    return {
        (int(first), int(last)): part.pivot(index="seed", columns="variant", values="bits_per_byte")
        for (first, last), part in found.groupby(["first", "last"])
    }


def _far(root: Path, comparison: Comparison) -> Iterator[Column]:
    """The losses at the positions that are farthest beyond the length of training."""
    *_, (first, last) = [(-1, -1), *(parts := losses_by_position(root))]
    if first >= comparison.config["context"]:
        yield Column(f"{comparison.name}: positions {first:,} to {last:,}", parts[first, last], ".3f")


def _costs(comparison: Comparison) -> Iterator[Column]:
    """What a variant carries from token to token, and computes for each; of older records as its model has it now."""
    found = {}
    for variant in comparison.variants:
        state, flops = variant.state, variant.flops
        if flops is None and not variant.submitted:
            config = Config(**comparison.config | variant.of_all_layers)
            shape = Shape(comparison.objective.vocabulary, config.context)
            _, state, flops = costs(get_variant(variant.name), config, shape)
        found[variant.name] = {"numbers of the state": state, "MFLOPs a token": flops and flops / 1e6}
    table = pd.DataFrame(found, dtype=float)
    for head, pattern in ("numbers of the state", ",.0f"), ("MFLOPs a token", ".2f"):
        yield Column(head, table.loc[[head]], pattern)


def _table(columns: list[Column], by: Column, highest_first: bool = False) -> pd.DataFrame | None:
    """Mean and interval of each column over the seeds, in the order of one; None if no run has ended."""
    table = pd.DataFrame({each.head: _cells(each) for each in columns}).dropna(axis="columns", how="all").fillna("-")
    ends = pd.Series({**by.values.mean(), **by.beside}, dtype=float).sort_values(ascending=not highest_first)
    found = table.reindex([*ends.index, *table.index.difference(ends.index)])
    return found.rename_axis("variant").reset_index() if len(found) else None


def _cells(column: Column) -> "pd.Series[str]":
    found = {str(name): estimate([*values.dropna()]) for name, values in column.values.items()}
    cells = {
        name: with_interval(each.mean, each.low, each.high, column.pattern) for name, each in found.items() if each.n
    }
    return pd.Series(cells | {name: f"{value:{column.pattern}}" for name, value in column.beside.items()}, dtype=str)
