"""How far the runs of a comparison are, from their files alone: the same for a run of this machine or of another."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from experiments.records.record import planned_runs, read_comparison, run_directory, run_rows, run_status
from experiments.records.schema import Comparison, MetricsRow

T = TypeVar("T")
FEW, LONGEST_INTERVALS = 120.0, 10
"""seconds, and intervals between rows, that a run may write nothing before it is called silent"""


@dataclass(frozen=True)
class RunProgress:
    """A run as its files have it at some time."""

    variant: str
    seed: int
    state: str
    """as in status.json, or "damaged" """
    reason: str | None = None
    step: int = 0
    loss: float = nan
    """of the newest training row"""
    metric: float = nan
    """the primary metric of the newest validation row"""
    tokens_per_second: float = nan
    seconds_per_step: float = nan
    """with evaluations, since it was last started"""
    seconds_left: float = nan
    silent: float = 0.0
    """seconds that a running run has written nothing for, if that is too long"""

    def __str__(self) -> str:
        return f"{self.variant} seed {self.seed}"


@dataclass(frozen=True)
class Progress:
    """A comparison at some time."""

    root: Path
    comparison: Comparison
    runs: list[RunProgress]
    curves: dict[str, tuple[list[int], list[float]]]
    """variant -> steps and the primary metric on the validation split, the mean of the seeds that have got there"""

    @property
    def counts(self) -> Counter[str]:
        """How many runs are in each state."""
        return Counter(run.state for run in self.runs)

    @property
    def has_ended(self) -> bool:
        return not self.counts["running"] + self.counts["queued"]

    @property
    def seconds_left(self) -> float:
        """Of all runs, as many at a time as now; not a number if that cannot be told."""
        running = [run for run in self.runs if run.state == "running" and run.seconds_per_step > 0]
        if not running:
            return nan
        steps = int(self.comparison.config["steps"])
        left = sum(steps - run.step for run in self.runs if run.state in ("running", "queued"))
        share = fmean(run.seconds_per_step for run in running) * left / len(running)
        return max(share, *(run.seconds_left for run in running), 0.0)


class Follower:
    """Reads comparisons again and again; of their files only those that have changed."""

    def __init__(self, directory: Path) -> None:
        """Raises ValueError if the directory holds no comparison."""
        self._directory = directory
        self._read: dict[Path, tuple[Any, Any]] = {}
        if not self._roots():
            read_comparison(directory)

    def look(self, now: float | None = None) -> list[Progress]:
        """How far everything is; trials that have ended are left out. Raises ValueError if a record is damaged."""
        found = [self._progress(root, time.time() if now is None else now) for root in self._roots()]
        return [each for each in found if each.root == self._directory or not each.has_ended] or found

    def _roots(self) -> list[Path]:
        """The directory, and those in it: trials of learning rates, or comparisons of several data sets."""
        places = [self._directory, *sorted(path.parent for path in self._directory.glob("*/comparison.json"))]
        return [place for place in places if (place / "comparison.json").exists()]

    def _progress(self, root: Path, now: float) -> Progress:
        comparison = self._once(root / "comparison.json", lambda: read_comparison(root))
        runs, values = [], defaultdict[str, dict[int, list[float]]](lambda: defaultdict(list))
        for variant, seed in planned_runs(root, comparison):
            run, validation = self._run(root, comparison, variant, seed, now)
            runs.append(run)
            for step, value in validation.items():
                values[variant][step].append(value)
        curves = {
            variant: (sorted(by_step), [fmean(by_step[step]) for step in sorted(by_step)])
            for variant, by_step in values.items()
        }
        return Progress(root, comparison, runs, curves)

    def _run(
        self, root: Path, comparison: Comparison, variant: str, seed: int, now: float
    ) -> tuple[RunProgress, dict[int, float]]:
        """A run, and its primary metric on the validation split by step."""
        directory, config = run_directory(root, variant, seed), comparison.config
        paths = directory / "status.json", directory / "metrics.jsonl"
        try:
            status = self._once(paths[0], lambda: run_status(root, variant, seed))
            rows: list[MetricsRow] = self._once(paths[1], lambda: run_rows(root, variant, seed))
        except ValueError as error:
            return RunProgress(variant, seed, "damaged", str(error)), {}
        train = [row for row in rows if row.split == "train"]
        judged = [row for row in rows if row.split == "validation" and comparison.objective.metric in row.metrics]
        validation = {row.step: row.metrics[comparison.objective.metric] for row in judged}
        last = train[-1].metrics if train else {}
        each, steps, is_running = _seconds_per_step(train), int(config["steps"]), status.state == "running"
        step = steps if status.state == "done" else train[-1].step if train else 0
        quiet = now - max((stat[0] for stat in map(_stat, paths) if stat), default=now)
        longest = max(FEW, LONGEST_INTERVALS * each * max(config["log_every"], config["evaluate_every"]))
        return RunProgress(
            variant,
            seed,
            status.state,
            status.reason,
            step,
            last.get("loss", nan),
            next(reversed(validation.values()), nan),
            last.get("tokens_per_second", nan),
            each,
            max(0.0, each * (steps - step) - quiet) if is_running else nan,
            quiet if is_running and quiet > longest else 0.0,
        ), validation

    def _once(self, path: Path, read: Callable[[], T]) -> T:
        """What ``read`` gives of a file, read again only if the file was written since."""
        stat = _stat(path)
        if stat is None or self._read.get(path, (None, None))[0] != stat:
            self._read[path] = stat, read()
        found: T = self._read[path][1]
        return found


def _stat(path: Path) -> tuple[float, int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime, stat.st_size, stat.st_ino


def _seconds_per_step(train: list[MetricsRow]) -> float:
    """The mean since the run was last started, when its clock began anew; not a number before two rows."""
    since: list[tuple[int, float]] = []
    for row in train:
        seconds = row.metrics.get("seconds", nan)
        if since and not seconds > since[-1][1]:
            since = []
        since.append((row.step, seconds))
    return (since[-1][1] - since[0][1]) / (since[-1][0] - since[0][0]) if len(since) > 1 else nan
