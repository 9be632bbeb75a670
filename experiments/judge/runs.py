"""The runs of a comparison as the samples of claims need them: what became of each, and its recorded numbers."""

from functools import cached_property
from itertools import product
from pathlib import Path

import pandas as pd

from experiments.config import recorded_steps
from experiments.judge.curves import RunRecord, by_run
from experiments.judge.statistics import estimate, run_states
from experiments.records.record import KEPT_EVERY, is_packed
from experiments.records.schema import Comparison


class Runs:
    """Each is worked out once, when asked for."""

    def __init__(self, root: Path, comparison: Comparison, curves: pd.DataFrame) -> None:
        self._root, self._comparison, self._curves = root, comparison, curves

    @cached_property
    def numbers(self) -> dict[tuple[str, int], RunRecord]:
        """(variant, seed) -> its numbers"""
        return by_run(self._curves)

    @cached_property
    def fates(self) -> dict[tuple[str, int], tuple[str, str]]:
        """(variant, seed) -> (state, reason); what is done and lacks a record that it ought to have is "unfinished"."""
        states = run_states(self._root, self._comparison, self._curves).itertuples(index=False, name=None)
        names = [variant.name for variant in self._comparison.variants]
        fates = dict.fromkeys(product(names, self._comparison.seeds), ("queued", ""))
        fates |= {(variant, seed): (state, reason) for variant, seed, state, reason in states}
        for place, (state, _) in fates.items():
            if state == "done" and (lacking := self._lacking(*place)):
                fates[place] = "unfinished", f"its status is done, but no {lacking} figure is on record"
        return fates

    def _lacking(self, variant: str, seed: int) -> str:
        """The first split and step of which a run ought to have a record; empty if it has all."""
        # What training records besides the loss is the objective's affair.
        recorded = self._recorded_steps
        config = self._comparison.config
        every = KEPT_EVERY if is_packed(self._root, variant, seed) else 1
        settings = config["log_every"] * every, config["evaluate_every"], config.get("budgets", "none")
        return next(
            (
                f"{split} (step {step})"
                for split in ("train", "validation", "test")
                for step in recorded_steps(split, config["steps"], *settings)
                if (variant, seed, split, step) not in recorded
            ),
            "",
        )

    @cached_property
    def _recorded_steps(self) -> set[tuple[str, int, str, int]]:
        curves = self._curves
        primary = (curves["split"] == "train") | (curves["metric"] == self._comparison.objective.metric)
        places = curves.loc[primary, ["variant", "seed", "split", "step"]]
        return set(places.itertuples(index=False, name=None))

    @cached_property
    def unlearnt(self) -> dict[str, str]:
        """By variant that is not clearly better than the comparison's floor, a sentence that says so.

        Clearly is by the 95 % interval of its test figure's mean, of fewer than three seeds by the mean.
        """
        objective, floor = self._comparison.objective, self._comparison.floor
        if floor is None:
            return {}
        sign, words, found = 1 if objective.better == "higher" else -1, objective.metric.replace("_", " "), {}
        for variant in self._comparison.variants:
            runs = [(variant.name, seed) for seed in self._comparison.seeds]
            last = [self.numbers[run].last(f"test_{objective.metric}") for run in runs if self.fates[run][0] == "done"]
            mine = estimate([sign * value for value in last])
            reached = mine.low if mine.has_interval else mine.mean
            if mine.n and not reached > sign * floor.value:
                values = f"{words} {sign * mine.mean:.3f}, and {floor.name} {floor.value:.3f}"
                found[variant.name] = f"{variant.name} has {values}"
        return found
