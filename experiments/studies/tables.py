"""The CSV files that the studies leave, and the samples that their claims take from them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.console import counted
from experiments.judge.runs import Runs
from experiments.judge.samples import ReadSample, Sample, by_seed
from experiments.records.csv_files import NotMeasured, read_csv
from experiments.records.files import write_atomically
from experiments.records.schema import Comparison
from experiments.studies.speed.benchmark import time_in_turn
from experiments.train.models import Shape
from experiments.train.trained_models import finished_runs, trained_models

RUN = {"variant": str, "seed": int}


@dataclass(frozen=True)
class Table:
    """``<name>.csv`` of a comparison, or ``<name>.parquet`` of a packed one.

    What it holds besides these columns is for other readers.
    """

    name: str
    key: Mapping[str, type]
    """columns, in which no two rows are alike"""
    values: Mapping[str, type]
    """the other columns"""

    @property
    def columns(self) -> list[str]:
        return [*self.key, *self.values]

    def read(self, root: Path) -> pd.DataFrame:
        """Raises NotMeasured if there is none, and ValueError if it is not as it should be."""
        return read_csv(root / f"{self.name}.csv", {**self.key, **self.values}, key=list(self.key))

    def write(self, root: Path, *parts: pd.DataFrame, float_format: str = "%.9g") -> None:
        """Write all parts as one, if there are any."""
        if parts:
            text = pd.concat(parts).to_csv(index=False, float_format=float_format)
            write_atomically(root / f"{self.name}.csv", text)

    def by_run(self, root: Path, *keys: str) -> dict[Any, pd.DataFrame]:
        """What the file holds, by variant and seed or these columns; nothing if there is none or it is damaged."""
        try:
            return dict(list(self.read(root).groupby([*keys] or ["variant", "seed"])))
        except (NotMeasured, ValueError):
            return {}

    def measure(
        self,
        root: Path,
        comparison: Comparison,
        objective: Shape,
        measured: str,
        parts: Callable[[str, int, Any], Iterable[pd.DataFrame | str]],
    ) -> list[str]:
        """As ``measure_models`` of this table alone."""

        def alone(name: str, seed: int, model: Any) -> Iterator[tuple[pd.DataFrame] | str]:
            return (each if isinstance(each, str) else (each,) for each in parts(name, seed, model))

        return measure_models((self,), root, comparison, objective, measured, alone)

    def time(
        self,
        root: Path,
        names: Sequence[str],
        measured: str,
        call_of: Callable[[str], Callable[[], object]],
        more: Callable[[str], dict[str, Any]] = lambda name: {},
        **limits: Any,
    ) -> list[str]:
        """Write the seconds of a call of these variants, in rounds that have all of them once, beside ``more`` of each.

        Where there is a table of all of them it stays: a quiet machine may have made it. ``limits`` are those of
        ``time_in_turn``. Returns a sentence for each that failed.
        """
        if {*names} <= {name for (name,) in self.by_run(root, "variant")}:
            return []
        calls = {name: call_of(name) for name in counted(names, f"{measured}: models")}
        seconds, failures = time_in_turn(calls, **limits)
        parts = []
        for name, values in seconds.items():
            try:
                columns = {"variant": name, "round": range(len(values)), "seconds": values} | more(name)
                parts.append(pd.DataFrame(columns)[self.columns])
            except RuntimeError as error:
                failures[name] = str(error)
        self.write(root, *parts)
        return [f"{measured} leaves out {name}: {reason}" for name, reason in failures.items()]

    def samples(
        self,
        by: str = "draw",
        planned: int | Callable[..., int] = 0,
        unit: str = "draws",
        prepare: Callable[[pd.DataFrame, Comparison], pd.DataFrame] = lambda table, comparison: table,
        values: Callable[..., "pd.Series[float]"] | None = None,
    ) -> Callable[..., ReadSample]:
        """Makes the sample of a claim from what the claim says: ``values``, or ``values_at`` of these, by draw or seed.

        By draw there are to be ``planned`` values, or ``planned(comparison, **words)``. By seed there are those at
        which the word ``variant`` finished; with a word ``other``, what that variant has is subtracted.
        """
        values = values or values_at

        def make(**words: Any) -> ReadSample:
            def of(root: Path, comparison: Comparison, **others: Any) -> Any:
                table, place = self.read(root), {"column": next(iter(self.values))} | words | others
                if by == "seed":
                    table = table[table["variant"] == place["variant"]]
                return values(prepare(table, comparison), by, **place)

            def of_seeds(root: Path, comparison: Comparison, runs: Runs) -> Callable[[int], float | None]:
                found = of(root, comparison)
                if words.get("other"):
                    found = (found - of(root, comparison, variant=words["other"])).dropna()
                return lambda seed: found.get(seed)

            def of_draws(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
                try:
                    found = of(root, comparison)
                except NotMeasured:
                    return None
                number = planned if isinstance(planned, int) else planned(comparison, **words)
                return Sample(found.to_dict(), number, unit_of_sample=unit)

            if by == "seed":
                return by_seed(tuple(filter(None, (words["variant"], words.get("other")))), of_seeds)
            return of_draws

        return make


def measure_models(
    tables: Sequence[Table],
    root: Path,
    comparison: Comparison,
    objective: Shape,
    measured: str,
    parts: Callable[[str, int, Any], Iterable[tuple[pd.DataFrame, ...] | str]],
) -> list[str]:
    """Write, after each trained model, what ``parts(variant, seed, model)`` makes of it, but for those two columns.

    A part is a sentence, or rows of each table. The rows of a finished run whose weights are gone, or of which nothing
    is made, stay as they were. Returns the sentences, and one for each run that has neither weights to be ``measured``
    nor rows in all tables.
    """
    notes, before = list[str](), [table.by_run(root) for table in tables]
    found = {run: [rows.get(run) for rows in before] for run in finished_runs(root, comparison)}
    there = [run for run, rows in found.items() if all(each is not None for each in rows)]
    for name, seed, model in trained_models(root, comparison, objective, measured, notes, there):
        made = [list[pd.DataFrame]() for _ in tables]
        for part in parts(name, seed, model):
            if isinstance(part, str):
                notes.append(part)
                continue
            for of_table, rows in zip(made, part, strict=True):
                of_table.append(rows)
        of_run = found.setdefault((name, seed), [None] * len(tables))
        for place, (table, of_table) in enumerate(zip(tables, made, strict=True)):
            if of_table:
                of_run[place] = pd.concat(of_table).assign(variant=name, seed=seed)[table.columns]
                of_all = (each[place] for each in found.values())
                table.write(root, *(known for known in of_all if known is not None))
    return list(dict.fromkeys(notes))


def values_at(
    table: pd.DataFrame,
    by: str,
    value: str = "a",
    against: Sequence[dict[str, Any]] = (),
    take: str = "mean",
    **place: Any,
) -> "pd.Series[float]":
    """What ``value`` makes of a, and b and c, by draw or seed: a ``column`` at a place, and at that place but for what
    ``against`` says.

    A place is a value, or several, of columns. Of several, the ``take`` ("mean", "max") where all of them are there.
    """

    def at(column: str, **place: Any) -> "pd.Series[float]":
        rows, count = table, 1
        for name in place.keys() & {*table.columns} - {by}:
            wanted = np.atleast_1d(place[name])
            rows, count = rows[rows[name].isin(wanted)], count * len(wanted)
        grouped = rows.groupby(by)[column]
        return grouped.agg(take)[grouped.size() == count]

    numbers = {name: at(**place | other) for name, other in zip("abc", [{}, *against], strict=False)}
    found: Any = pd.DataFrame(numbers).dropna().eval(value)
    return found[np.isfinite(found)]


def whole_means(rows: pd.DataFrame, keys: Sequence[str], column: str, count: int) -> pd.DataFrame:
    """The mean of a column by these keys, of those that have so many rows."""
    found = rows.groupby(list(keys))[column].agg(["mean", "size"])
    return found[found["size"] == count]["mean"].rename(column).reset_index()
