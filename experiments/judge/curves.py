"""All that a comparison recorded, as one long table, the content of curves.csv; and its runs' curves one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.records.record import run_rows, run_status
from experiments.records.schema import Comparison

Array = np.ndarray[Any, Any]
CURVE_COLUMNS = ["variant", "seed", "step", "tokens", "split", "metric", "value"]


def read_curves(root: Path, comparison: Comparison) -> pd.DataFrame:
    """Every recorded number of a comparison as a long table with the columns of curves.csv.

    Raises ValueError that names the file and line if the records of a finished run are damaged; those of another run
    are left out: it is not finished, and its status says what is known of it.
    """
    records = []
    for variant, seed in comparison.runs:
        try:
            rows = run_rows(root, variant, seed)
        except ValueError:
            if run_status(root, variant, seed).state == "done":
                raise
            continue
        records += [
            (variant, seed, row.step, row.tokens, row.split, metric, value)
            for row in rows
            for metric, value in row.metrics.items()
        ]
    return pd.DataFrame.from_records(records, columns=CURVE_COLUMNS)


class NotRecorded(Exception):
    """A finished run lacks a number that a quantity is made of: it has to be measured yet."""


class RunRecord:
    """The recorded numbers of one run, as curves: a metric by step, ascending.

    A metric's name begins with its split: ``validation_bits_per_byte``. Each method raises NotRecorded where it is not.
    """

    def __init__(self) -> None:
        self._curves: dict[str, tuple[Array, Array]] = {}

    def add(self, metric: str, steps: Array, values: Array) -> None:
        by_step = np.argsort(steps, kind="stable")
        self._curves[metric] = steps[by_step], values[by_step]

    def has(self, metric: str) -> bool:
        return metric in self._curves

    def curve(self, metric: str) -> "pd.Series[float]":
        if not self.has(metric):
            raise NotRecorded(metric)
        steps, values = self._curves[metric]
        return pd.Series(values, pd.Index(steps, name="step"), name="value")

    def last(self, metric: str) -> float:
        """At the last step that has it."""
        return float(self.curve(metric).iloc[-1])

    def at(self, metric: str, step: int) -> float:
        curve = self.curve(metric)
        if step not in curve.index:
            raise NotRecorded(metric)
        return float(curve[step])

    def average(self, metric: str) -> float:
        """The area under the curve over its steps, by trapezia, divided by their number."""
        curve = self.curve(metric)
        steps = curve.index.to_numpy(float)
        if len(curve) == 1:
            return float(curve.iloc[0])
        return float(np.trapezoid(curve.to_numpy(), steps) / (steps[-1] - steps[0]))


def by_run(curves: pd.DataFrame) -> dict[tuple[str, int], RunRecord]:
    """(variant, seed) -> its numbers"""
    records: dict[tuple[str, int], RunRecord] = {}
    steps, values = curves["step"].to_numpy(), curves["value"].to_numpy()
    # Places of all groups at once: a table made for each curve takes a minute for all that is committed.
    groups: Any = curves.groupby(["variant", "seed", "split", "metric"], sort=False).indices
    for (variant, seed, split, metric), rows in groups.items():
        records.setdefault((variant, seed), RunRecord()).add(f"{split}_{metric}", steps[rows], values[rows])
    return records
