"""The CSV files that the studies leave, and the samples that their claims take from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.runs import Runs
from experiments.analysis.samples import ReadSample, Sample, by_seed
from experiments.records.csv_files import TEXT, Column, read_csv, to_csv, whole
from experiments.records.files import is_there, write_atomically
from experiments.records.schema import Comparison

RUN = {"variant": TEXT, "seed": whole(0, 2**63)}


@dataclass(frozen=True)
class Table:
    """``<name>.csv`` of a comparison. What it holds besides these columns is for other readers."""

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
        path = root / f"{self.name}.csv"
        return read_csv(path, self.key | self.values, key=list(self.key)) if is_there(path) else None

    def write(self, root: Path, *parts: pd.DataFrame, float_format: str = "%.9g") -> None:
        """Write all parts as one, if there are any."""
        if parts:
            write_atomically(root / f"{self.name}.csv", to_csv(pd.concat(parts), float_format))

    def over_draws(
        self, quantity: Callable[[pd.DataFrame], Any], planned: int | Callable[[Comparison], int], unit: str = "draws"
    ) -> ReadSample:
        """The items of ``quantity(table)``, by draw."""

        def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
            table = self.read(root)
            if table is None:
                return None
            values = {int(draw): float(value) for draw, value in quantity(table).items()}
            number = planned if isinstance(planned, int) else planned(comparison)
            return Sample(values, number, unit_of_sample=unit)

        return sample

    def over_seeds(
        self, variants: Sequence[str], quantity: Callable[[pd.DataFrame, Comparison], float | None]
    ) -> ReadSample:
        """``quantity`` of a seed's rows, for each seed at which all these variants finished; None: not measured."""

        def read(root: Path, comparison: Comparison, runs: Runs) -> Callable[[int], float | None]:
            table = self.read(root)
            return lambda seed: None if table is None else quantity(table[table["seed"] == seed], comparison)

        return by_seed(tuple(variants), read)
