"""``--for``: no run is started that would not end in the time that there is."""

import re
import time
from collections.abc import Callable

from experiments.launch.launcher import Job
from experiments.records.record import read_metrics
from experiments.variants import without_rate

UNITS = {"h": 3600, "m": 60, "s": 1}


def parse_time(text: str) -> float:
    """The seconds of a text such as 2h, 90m or 45s. Raises ValueError if it is none."""
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([hms])", text)
    if not found or not float(found[1]):
        raise ValueError(f"--for is {text!r}; give a time such as 2h, 90m or 45s")
    return float(found[1]) * UNITS[found[2]]


class TimeLimit:
    """A time from now on, and how long the runs of each variant are estimated to take."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end = clock, clock() + seconds
        self.of_run: dict[str, float] = {}
        """by variant, without its learning rate: seconds of a whole run"""
        self.steps = 1
        """of every run"""
        self.reached = False
        """whether a run was not started; then no other is"""

    @property
    def left(self) -> float:
        """Seconds that are left, never less than 0."""
        return max(0.0, self._end - self._clock())

    def seconds(self, job: Job) -> float:
        """Estimated seconds of what is left of a run."""
        whole = self.of_run[without_rate(job.run.variant)]
        try:
            rows = read_metrics(job.directory / "metrics.jsonl")
        except ValueError:  # damaged: the run itself says so
            rows = []
        done = max((row.step for row in rows if row.split == "train"), default=0)
        return whole * (1 - min(done / self.steps, 1))

    def allows(self, job: Job) -> bool:
        """Whether a run may be started now."""
        self.reached = self.reached or self.seconds(job) > self.left
        return not self.reached
