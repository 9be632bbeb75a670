"""What the runs of the benchmark's tasks have reached: tables with a row a seed and a column a variant."""

from collections.abc import Iterable, Iterator, Sequence
from math import nan
from pathlib import Path

import pandas as pd

from experiments.config import Config
from experiments.judge.curves import read_curves
from experiments.judge.statistics import run_states
from experiments.records.csv_files import NotMeasured
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison, VariantRecord
from experiments.studies.benchmark.definition import read_benchmark
from experiments.studies.benchmark.measure import longer
from experiments.studies.length.measure import AS_TRAINED, LOSSES, window_means
from experiments.studies.tokens.budgets import MILLION, best_floors, budgets
from experiments.train.costs import costs
from experiments.train.models import Shape
from experiments.variants import get_variant

YARDSTICK = "softmax-rope"
"""what other variants are compared with"""


def tasks_of(roots: Sequence[Path], *questions: int) -> Iterator[tuple[Path, Comparison]]:
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


def losses_by_position(root: Path, method: str = AS_TRAINED) -> dict[tuple[int, int], pd.DataFrame]:
    """The same by the first and the last position of each part of the longest windows; empty if not measured."""
    try:
        found = LOSSES.read(root)[lambda each: each["method"] == method]
    except NotMeasured:
        return {}
    found = found[found["length"] == found["length"].max()]
    return {
        (int(first), int(last)): part.pivot(index="seed", columns="variant", values="bits_per_byte")
        for (first, last), part in found.groupby(["first", "last"])
    }


def reached(root: Path, comparison: Comparison, budget: float = 0, factor: int = 1, pairs: int = 0) -> pd.DataFrame:
    """The test split's primary metric after a budget in millions of bytes (0: at the end), or at the end in windows or
    sequences of ``factor`` times the length of training, with so many pairs (0: all there are); empty: not measured.
    """
    length = factor * comparison.config["context"]
    try:
        if comparison.objective.metric == "accuracy" and (factor > 1 or pairs):
            found = longer(root)
            found = found[(found["length"] == length) & (found["pairs"].isin([pairs] if pairs else found["pairs"]))]
            return found.pivot_table(index="seed", columns="variant", values="value")
        if factor > 1:
            found = window_means(LOSSES.read(root))
            found = found[(found["length"] == length) & (found["method"] == AS_TRAINED)]
            return found.pivot(index="seed", columns="variant", values="bits_per_byte")
    except NotMeasured:
        return pd.DataFrame()
    by_budget = tested_by_budget(root, comparison)
    return by_budget.get(round(budget * MILLION) if budget else max(by_budget), pd.DataFrame())


def by_position(root: Path) -> pd.DataFrame:
    """The losses in the longest windows by the middle of a range of positions: columns variant, seed, offset, value."""
    parts = losses_by_position(root).items()
    return _joined(_long(found).assign(offset=(first + last + 1) / 2) for (first, last), found in parts)


def floor_by_position(root: Path) -> pd.DataFrame:
    """The best floor of the task, at the same places: columns offset, value."""
    return by_position(root)[["offset"]].drop_duplicates().assign(value=_floor(read_comparison(root))).dropna()


def floor_behind(root: Path) -> pd.DataFrame:
    """After each budget the best floor minus the mean of ``YARDSTICK``: columns tokens, value."""
    floors, tested = best_floors(root), tested_by_budget(root, read_comparison(root))
    means = [tested[tokens].reindex(columns=[YARDSTICK]).mean().item() for tokens in floors["tokens"]]
    return floors.assign(value=floors["value"] - means).dropna()


def by_size(roots: Sequence[Path]) -> pd.DataFrame:
    """What variants have minus ``YARDSTICK``, in the first task and on the ladder: variant, seed, parameters, value."""
    parts = []
    for root, comparison in _sizes(roots):
        values = reached(root, comparison).reindex(columns=[each.name for each in comparison.variants])
        minus = _long(values.sub(values[YARDSTICK], axis=0).drop(columns=YARDSTICK))
        parts.append(minus.assign(parameters=comparison.variants[0].parameters))
    on_the_ladder = {name for part in parts[1:] for name in part["variant"]}
    return _joined(part[part["variant"].isin(on_the_ladder)] for part in parts)


def floor_by_size(roots: Sequence[Path]) -> pd.DataFrame:
    """The same of the best floors: columns parameters, value."""
    return _joined(floor_behind(at)[-1:].assign(parameters=each.variants[0].parameters) for at, each in _sizes(roots))


def by_state(roots: Sequence[Path]) -> pd.DataFrame:
    """The accuracies of recall with the most pairs, by the numbers of the state: variant, seed, state, value."""
    parts = []
    for root, comparison in tasks_of(roots, 3):
        states = {each.name: costs_of(each, comparison)[0] for each in comparison.variants}
        found = _long(reached(root, comparison, pairs=max(read_benchmark().tasks[comparison.name].pairs)))
        parts.append(found.assign(state=found["variant"].map(states)))
    return _joined(parts)


def guessing(roots: Sequence[Path]) -> pd.DataFrame:
    """The best floor of recall, from the smallest to the largest state: columns state, value."""
    states = by_state(roots)["state"]
    floors = [_floor(comparison) for _, comparison in tasks_of(roots, 3)]
    return pd.DataFrame({"state": [states.min(), states.max()], "value": [max(floors)] * 2}).dropna()


def costs_of(variant: VariantRecord, comparison: Comparison) -> tuple[int | None, int | None]:
    """Numbers of the state and FLOPs of a token; of older records as the variant's model has them now."""
    if variant.flops is not None or variant.submitted:
        return variant.state, variant.flops
    config = Config.of(comparison.config | variant.of_all_layers)
    _, state, flops = costs(get_variant(variant.name), config, Shape(comparison.objective.vocabulary, config.context))
    return state, flops


def _sizes(roots: Sequence[Path]) -> list[tuple[Path, Comparison]]:
    """The first task of the language models, if it has ``YARDSTICK``, and the ladder."""
    each = [*[*tasks_of(roots, 1)][:1], *tasks_of(roots, 2)]
    return [(root, task) for root, task in each if YARDSTICK in {variant.name for variant in task.variants}]


def _floor(comparison: Comparison) -> float:
    floor = comparison.best_floor(comparison.objective.metric)
    return floor.value if floor else nan


def _long(values: pd.DataFrame) -> pd.DataFrame:
    """Columns variant, seed and value."""
    return values.rename_axis(index="seed", columns="variant").melt(ignore_index=False).reset_index().dropna()


def _joined(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Raises NotMeasured if all are empty."""
    there = [part for part in parts if len(part)]
    if not there:
        raise NotMeasured("nothing of it")
    return pd.concat(there)
