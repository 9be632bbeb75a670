"""``--for``: no run is started that would not end in the time that there is, and none is trained beyond it."""

import re
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from experiments.objects import Job
from experiments.records.record import read_metrics
from experiments.variants import without_rate

UNITS = {"h": 3600, "m": 60, "s": 1}


def parse_time(text: str) -> float:
    """The seconds of a text such as 2h, 90m or 45s. Raises ValueError if it is none."""
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([hms])", text)
    if not found or not float(found[1]):
        raise ValueError(f"--for is {text!r}; give a time such as 2h, 90m or 45s")
    return float(found[1]) * UNITS[found[2]]


def without_limit(words: Sequence[str]) -> list[str]:
    """The words of a command line but for ``--for``: the command of all runs together."""
    return [word for before, word in pairwise(("", *words)) if "--for" not in (before, word.partition("=")[0])]


class TimeLimit:
    """A time from now on, and how long the runs of each variant take: an estimate until one has ended."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end = clock, clock() + seconds
        self._started: dict[Job, float] = {}
        self.of_run: dict[str, float] = {}
        """by variant, without its learning rate: seconds of a whole run"""
        self.steps = 1
        """of every run"""
        self.reached = False
        """whether a run was not started; then no other is"""

    def seconds(self, job: Job) -> float:
        """Estimated seconds of what is left of a run."""
        return self.of_run[without_rate(job.run.variant)] * share_left(job, self.steps)

    def allows(self, job: Job) -> bool:
        """Whether a run may be started now; then it is."""
        self.reached = self.reached or self.seconds(job) > self._end - self._clock()
        if not self.reached and not _steps_done(job):
            self._started[job] = self._clock()
        return not self.reached

    def is_over(self) -> bool:
        """Whether no time is left."""
        is_over = self._clock() >= self._end
        self.reached = self.reached or is_over
        return is_over

    def ends(self, job: Job) -> None:
        """Take the time of a run that ended well as that of its variant, start and evaluations included."""
        if job in self._started:
            self.of_run[without_rate(job.run.variant)] = self._clock() - self._started[job]


def share_left(job: Job, steps: int) -> float:
    """What of a run of so many steps is left, by its records."""
    return 1 - min(_steps_done(job) / steps, 1)


def _steps_done(job: Job) -> int:
    """By the records of a run."""
    try:
        rows = read_metrics(job.directory / "metrics.jsonl")
    except ValueError:  # damaged: the run itself says so
        rows = []
    return max((row.step for row in rows if row.split == "train"), default=0)
