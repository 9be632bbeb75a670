"""The recorded numbers of a comparison's cells, as the samples of claims need them."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.stats import cell_states


class NotRecorded(Exception):
    """A finished cell lacks a number that a quantity is made of: it has to be measured yet."""


class Cell:
    """The recorded numbers of one finished cell."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self._rows = rows
        self._curves: dict[str, pd.Series[float]] = {}

    def curve(self, metric: str) -> "pd.Series[float]":
        """A metric by step, ascending; its name begins with its split: ``validation_bits_per_byte``.

        Raises NotRecorded if there is none.
        """
        if metric not in self._curves:
            split, _, name = metric.partition("_")
            rows = self._rows[(self._rows["split"] == split) & (self._rows["metric"] == name)]
            self._curves[metric] = rows.set_index("step")["value"].sort_index()
        if self._curves[metric].empty:
            raise NotRecorded(metric)
        return self._curves[metric]

    def last(self, metric: str) -> float:
        """A metric at the last step that has it. Raises NotRecorded if there is none."""
        return float(self.curve(metric).iloc[-1])

    def average(self, metric: str) -> float:
        """The area under a metric's curve over its steps, by trapezia, divided by their number."""
        curve = self.curve(metric)
        steps = curve.index.to_numpy(float)
        if len(curve) == 1:
            return float(curve.iloc[0])
        return float(np.trapezoid(curve.to_numpy(), steps) / (steps[-1] - steps[0]))


class Cells:
    """The cells of a comparison: what became of each, and its numbers. Each is worked out once, when asked for."""

    def __init__(self, root: Path, comparison: dict[str, Any], curves: pd.DataFrame) -> None:
        self._root, self._comparison, self._curves = root, comparison, curves

    @cached_property
    def fates(self) -> dict[tuple[str, int], tuple[str, str]]:
        """(arm, seed) -> (state, reason)"""
        states: Any = cell_states(self._root, self._comparison, self._curves).itertuples(index=False)
        return {(row.variant, row.seed): (row.state, row.reason) for row in states}

    @cached_property
    def numbers(self) -> dict[tuple[str, int], Cell]:
        """(arm, seed) -> its numbers"""
        grouped: Any = self._curves.groupby(["variant", "seed"], sort=False)
        return {cell: Cell(rows) for cell, rows in grouped}
