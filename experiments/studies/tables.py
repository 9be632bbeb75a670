"""The CSV files that the studies leave, and the samples that their claims take from them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.runs import Runs
from experiments.analysis.samples import ReadSample, Sample, by_seed
from experiments.records.csv_files import REMEDY, TEXT, Column, find_table, read_csv, to_csv, whole
from experiments.records.files import write_atomically, wrong_file
from experiments.records.schema import Comparison
from experiments.training.models import Trained
from experiments.training.trained_models import finished_runs, trained_models

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
    problem: Callable[[pd.DataFrame], str] = lambda table: ""
    """what else is wrong with a table, if something is"""

    @property
    def columns(self) -> list[str]:
        return [*self.key, *self.values]

    def read(self, root: Path) -> pd.DataFrame | None:
        """None if there is none. Raises ValueError if it is not as it should be."""
        path = find_table(root / f"{self.name}.csv")
        if path is None:
            return None
        table = read_csv(path, self.key | self.values, key=list(self.key))
        if problem := self.problem(table):
            raise wrong_file(str(path), problem, REMEDY)
        return table

    def write(self, root: Path, *parts: pd.DataFrame, float_format: str = "%.9g") -> None:
        """Write all parts as one, if there are any."""
        if parts:
            write_atomically(root / f"{self.name}.csv", to_csv(pd.concat(parts), float_format))

    def measure(
        self,
        root: Path,
        comparison: Comparison,
        objective: Trained,
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

    def by_draw(
        self, planned: int | Callable[..., int], unit: str = "draws"
    ) -> Callable[[Callable[..., Any]], Callable[..., ReadSample]]:
        """Makes the sample of a claim of ``quantity(table, **arguments)``, which gives values by draw.

        There are to be ``planned`` values, or ``planned(comparison, **arguments)``.
        """

        def decorate(quantity: Callable[..., Any]) -> Callable[..., ReadSample]:
            @wraps(quantity)
            def make(**arguments: Any) -> ReadSample:
                def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
                    table = self.read(root)
                    if table is None:
                        return None
                    values = {int(draw): float(value) for draw, value in quantity(table, **arguments).items()}
                    number = planned if isinstance(planned, int) else planned(comparison, **arguments)
                    return Sample(values, number, unit_of_sample=unit)

                return sample

            return make

        return decorate

    def by_seed(self, quantity: Callable[..., float]) -> Callable[..., ReadSample]:
        """Makes the sample of a claim of ``quantity(rows, comparison, **arguments)``, the value of a seed's rows.

        Of each seed at which the arguments ``variant`` and, if it is not empty, ``other`` finished. NotRecorded: it is
        not measured.
        """

        @wraps(quantity)
        def make(**arguments: Any) -> ReadSample:
            def read(root: Path, comparison: Comparison, runs: Runs) -> Callable[[int], float | None]:
                table = self.read(root)
                if table is None:
                    return lambda seed: None
                return lambda seed: quantity(table[table["seed"] == seed], comparison, **arguments)

            variants = (arguments["variant"], arguments.get("other"))
            return by_seed(tuple(filter(None, variants)), read)

        return make
