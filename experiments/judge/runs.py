"""The recorded numbers of a comparison's runs, as the samples of claims need them."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.config import recorded_steps
from experiments.judge.statistics import estimate, run_states
from experiments.records.record import KEPT_EVERY, is_packed
from experiments.records.schema import Comparison


class NotRecorded(Exception):
    """A finished run lacks a number that a quantity is made of: it has to be measured yet."""


class RunRecord:
    """The recorded numbers of one finished run; each curve is worked out once, as many claims ask for the same."""

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
            if rows.empty:
                raise NotRecorded(metric)
            self._curves[metric] = rows.set_index("step")["value"].sort_index()
        return self._curves[metric]

    def last(self, metric: str) -> float:
        """A metric at the last step that has it. Raises NotRecorded if there is none."""
        return float(self.curve(metric).iloc[-1])

    def at(self, metric: str, step: int) -> float:
        """A metric at a step. Raises NotRecorded if it is not there."""
        curve = self.curve(metric)
        if step not in curve.index:
            raise NotRecorded(metric)
        return float(curve[step])

    def average(self, metric: str) -> float:
        """The area under a metric's curve over its steps, by trapezia, divided by their number."""
        curve = self.curve(metric)
        steps = curve.index.to_numpy(float)
        if len(curve) == 1:
            return float(curve.iloc[0])
        return float(np.trapezoid(curve.to_numpy(), steps) / (steps[-1] - steps[0]))


class Runs:
    """The runs of a comparison: what became of each, and its numbers. Each is worked out once, when asked for."""

    def __init__(self, root: Path, comparison: Comparison, curves: pd.DataFrame) -> None:
        self._root, self._comparison, self._curves = root, comparison, curves

    @cached_property
    def fates(self) -> dict[tuple[str, int], tuple[str, str]]:
        """(variant, seed) -> (state, reason); what is done and lacks a record that it ought to have is "unfinished"."""
        # What training records besides the loss is the objective's affair.
        primary, split = self._comparison.objective.metric, self._curves["split"]
        figures = self._curves[(split == "train") | (self._curves["metric"] == primary)]
        grouped: Any = figures.groupby(["variant", "seed", "split"], sort=False)["step"]
        recorded = {place: set(steps) for place, steps in grouped}
        fates = {}
        for run in run_states(self._root, self._comparison, self._curves).to_dict("records"):
            place, fate = (run["variant"], run["seed"]), (run["state"], run["reason"])
            if fate[0] == "done":
                config = self._comparison.config
                every = KEPT_EVERY if is_packed(self._root, *place) else 1
                lacking = (
                    f"its status is done, but no {split} (step {step}) figure is on record"
                    for split in ("train", "validation", "test")
                    for step in recorded_steps(
                        split,
                        config["steps"],
                        config["log_every"] * every,
                        config["evaluate_every"],
                        config.get("budgets", "none"),
                    )
                    if step not in recorded.get((*place, split), ())
                )
                told = next(lacking, None)
                fate = ("unfinished", told) if told else fate
            fates[place] = fate
        return fates

    @cached_property
    def unlearnt(self) -> dict[str, str]:
        """By variant that is not clearly better than the comparison's floor, a sentence that says so.

        Clearly is by the 95 % interval of its test figure's mean, of fewer than three seeds by the mean.
        """
        objective, floor = self._comparison.objective, self._comparison.floor
        if floor is None:
            return {}
        sign, found = 1 if objective.better == "higher" else -1, {}
        for variant in self._comparison.variants:
            runs = [(variant.name, seed) for seed in self._comparison.seeds]
            last = [self.numbers[run].last(f"test_{objective.metric}") for run in runs if self.fates[run][0] == "done"]
            mine = estimate([sign * value for value in last])
            reached = mine.low if mine.has_interval else mine.mean
            if mine.n and not reached > sign * floor.value:
                words = objective.metric.replace("_", " ")
                found[variant.name] = (
                    f"{variant.name} has {words} {sign * mine.mean:.3f}, and {floor.name} {floor.value:.3f}"
                )
        return found

    @cached_property
    def numbers(self) -> dict[tuple[str, int], RunRecord]:
        """(variant, seed) -> its numbers"""
        grouped: Any = self._curves.groupby(["variant", "seed"], sort=False)
        return {run: RunRecord(rows) for run, rows in grouped}
