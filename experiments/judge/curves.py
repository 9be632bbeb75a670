"""All that a comparison recorded, as one long table, the content of curves.csv; and its runs' curves one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.records.record import run_rows, run_status
from experiments.records.schema import Comparison

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

    def __init__(self, rows: pd.DataFrame) -> None:
        grouped: Any = rows.groupby(["split", "metric"], sort=False)
        self._curves = {"_".join(name): of.set_index("step")["value"].sort_index() for name, of in grouped}

    def curve(self, metric: str) -> "pd.Series[float]":
        if metric not in self._curves:
            raise NotRecorded(metric)
        return self._curves[metric]

    def has(self, metric: str) -> bool:
        return metric in self._curves

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
    grouped: Any = curves.groupby(["variant", "seed"], sort=False)
    return {run: RunRecord(rows) for run, rows in grouped}
