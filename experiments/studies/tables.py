"""The CSV files that the studies leave, and the samples that their claims take from them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.judge.runs import Runs
from experiments.judge.samples import ReadSample, Sample, by_seed
from experiments.records.csv_files import TEXT, Column, find_table, read_csv, whole
from experiments.records.files import write_atomically
from experiments.records.schema import Comparison
from experiments.train.models import Shape
from experiments.train.trained_models import finished_runs, trained_models

RUN = {"variant": TEXT, "seed": whole(0, 2**63)}


@dataclass(frozen=True)
class Table:
    """``<name>.csv`` of a comparison, or ``<name>.parquet`` of a packed one.

    What it holds besides these columns is for other readers.
    """

    name: str
    key: dict[str, Column]
    """columns, in which no two rows are alike"""
    values: dict[str, Column]
    """the other columns"""

    @property
    def columns(self) -> list[str]:
        return [*self.key, *self.values]

    def read(self, root: Path) -> pd.DataFrame | None:
        """None if there is none. Raises ValueError if it is not as it should be."""
        path = find_table(root / f"{self.name}.csv")
        if path is None:
            return None
        return read_csv(path, self.key | self.values, key=list(self.key))

    def write(self, root: Path, *parts: pd.DataFrame, float_format: str = "%.9g") -> None:
        """Write all parts as one, if there are any."""
        if parts:
            text = pd.concat(parts).to_csv(index=False, float_format=float_format)
            write_atomically(root / f"{self.name}.csv", text)

    def measure(
        self,
        root: Path,
        comparison: Comparison,
        objective: Shape,
        measured: str,
        parts: Callable[[str, int, Any], Iterable[pd.DataFrame | str]],
    ) -> list[str]:
        """Write what ``parts(variant, seed, model)`` makes of every trained model, but for those two columns.

        The rows of a finished run whose weights are gone stay as they were. Returns sentences: those that are among
        the parts, and one for each run that has neither weights to be ``measured`` nor such rows.
        """
        notes, rows = list[str](), self.rows_by_run(root)
        found = {run: rows.get(run) for run in finished_runs(root, comparison)}
        before = [run for run, part in found.items() if part is not None]
        for name, seed, model in trained_models(root, comparison, objective, measured, notes, before):
            found[name, seed] = None
            for part in parts(name, seed, model):
                if isinstance(part, str):
                    notes.append(part)
                else:
                    mine = part.assign(variant=name, seed=seed)[self.columns]
                    found[name, seed] = pd.concat([found[name, seed], mine])
        self.write(root, *(part for part in found.values() if part is not None))
        return list(dict.fromkeys(notes))

    def rows_by_run(self, root: Path) -> dict[Any, pd.DataFrame]:
        """What the file holds, by variant and seed; nothing if there is none or it is damaged."""
        try:
            table = self.read(root)
        except ValueError:
            return {}
        return {} if table is None else dict(list(table.groupby(["variant", "seed"])))

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
                table = self.read(root)
                place = {"column": next(iter(self.values))} | words | others
                if table is not None and by == "seed":
                    table = table[table["variant"] == place["variant"]]
                return None if table is None else values(prepare(table, comparison), by, **place)

            def of_seeds(root: Path, comparison: Comparison, runs: Runs) -> Callable[[int], float | None]:
                found = of(root, comparison)
                if found is not None and words.get("other"):
                    found = (found - of(root, comparison, variant=words["other"])).dropna()
                return lambda seed: None if found is None else found.get(seed)

            def of_draws(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
                found = of(root, comparison)
                number = planned if isinstance(planned, int) else planned(comparison, **words)
                return None if found is None else Sample(found.to_dict(), number, unit_of_sample=unit)

            if by == "seed":
                return by_seed(tuple(filter(None, (words["variant"], words.get("other")))), of_seeds)
            return of_draws

        return make


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
