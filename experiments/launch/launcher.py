"""Launchers start the runs of a comparison: a launcher is given jobs and reports their progress as events.

A job is a directory that holds all that its run needs, and a command that anyone can type. When and on which machine it
runs is the launcher's affair; what lasts (status.json, metrics.jsonl, checkpoints) is written by the run itself.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from experiments.records.record import read_record
from experiments.records.schema import State, Status


class Run(NamedTuple):
    variant: str
    seed: int

    def __str__(self) -> str:
        return f"{self.variant} seed {self.seed}"


class Job(NamedTuple):
    """One run's work; all of it can be sent to another process."""

    run: Run
    directory: Path
    """absolute"""

    @property
    def root(self) -> Path:
        """The comparison's directory."""
        return self.directory.parents[len(Path(self.run.variant).parts)]

    @property
    def command(self) -> list[str]:
        """Trains the run to its end. Exit status 0 done, 1 failed, 130 or 143 stopped after a checkpoint."""
        options = [] if runs_where_it_is() else ["-P"]
        return [sys.executable, *options, "-m", "experiments", "train", str(self.directory)]


def runs_where_it_is() -> bool:
    """Whether this package is that of the working directory, and may be found nowhere else.

    If not, Python must not look there: it looks there first, and would take a folder of the same name for the package.
    """
    return os.path.samefile(Path(__file__).parents[2], os.curdir)


class Started(NamedTuple):
    """A run's process is about to start."""

    run: Run


class Advanced(NamedTuple):
    """A run has done this many steps."""

    run: Run
    step: int
    loss: float
    tokens_per_second: float
    unit: str = "nats"
    """of the loss"""


class Ended(NamedTuple):
    """A run has ended: done, failed, queued if it was stopped, or running if another process trains it."""

    run: Run
    state: State
    reason: str | None = None


Event = Started | Advanced | Ended


class Launcher(Protocol):
    """Made with keywords ``workers``, the runs at a time, and ``run_timeout``, the seconds a run may be silent.

    One whose class says ``elsewhere = True`` has its runs on other machines. It is also made with ``resources``, what a
    run needs there, and without ``workers``, unless they were given: it knows how many there is room for.
    """

    def run(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Run every job; of each there is one Started, any number of Advanced and one Ended.

        Raises:
            signals.Stopped: SIGINT or SIGTERM came, and the runs have stopped.
        """
        ...


def how_it_ended(job: Job, exit_status: int | None) -> Ended:
    """How a run ended: by its status.json, or else by its process's exit status (negative: the signal's number)."""
    with suppress(ValueError):
        status = read_record(job.directory / "status.json", Status)
        if status.state in ("done", "failed") or status.reason is not None:
            return Ended(job.run, status.state, status.reason)
    cause = f"ended with exit status {exit_status} and without a word"
    if exit_status == -signal.SIGKILL:
        cause = "was killed (SIGKILL), as the system does when memory runs out"
    elif exit_status is not None and exit_status < 0:
        cause = f"ended with signal {signal.Signals(-exit_status).name}"
    return Ended(job.run, "failed", f"its process {cause}")
