"""Has a launcher train the runs of a comparison, and sees to it that status.json says how each ended.

Whatever ends a run, the others go on.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from experiments.objects import Job, Run
from experiments.records.files import create
from experiments.records.record import read_record
from experiments.records.schema import Status
from experiments.run.display import Display
from experiments.run.loop import Ended, Event, Launcher, Started, follow
from experiments.run.plan import Training, needed_by, prepared, write_status
from experiments.run.time_limit import TimeLimit

RESERVE_BYTES = 8 * 2**20
"""more than the statuses and the report of a comparison of a few thousand steps take"""


class Failure(NamedTuple):
    """A run that is not done; ``recorded`` tells whether its status.json says so."""

    ended: Ended
    recorded: bool = True

    @property
    def reason(self) -> str:
        return self.ended.reason or self.ended.state


def train_runs(
    training: Training,
    runs: list[Run],
    launcher: Launcher,
    display: Display,
    limit: TimeLimit | None = None,
    silence: float = math.inf,
) -> dict[Run, Failure]:
    """Run every run that is not done; returns the failed ones by run (an empty dict if all is well).

    Those that there was no time for stay queued; the ``limit`` learns how long runs take. ``silence``: see ``follow``.

    Raises:
        Stopped: SIGINT or SIGTERM came.
    """
    failures: dict[Run, Failure] = {}

    def show(event: Event) -> None:
        with suppress(OSError):  # of an output that goes nowhere, to a full disk say: the runs are more important
            display.show(event)

    def end(ended: Ended) -> None:
        failure = _record(training.job(ended.run), ended)
        if limit and limit.reached and ended.state == "queued":
            training.drop(ended.run)
        elif failure:
            failures[ended.run] = failure
        show(failure.ended if failure else ended)

    with _room_for_the_end(training.root):
        waiting: dict[Run, Job] = {}
        needed = needed_by(training)
        for run in runs:
            try:
                if not training.is_finished(run):
                    if limit:
                        training.drop(run)  # a machine may have been taken away while it was trained there
                    waiting[run] = prepared(training, run, needed)
            except OSError as error:
                show(Started(run))
                end(Ended(run, "failed", f"{type(error).__name__}: {error}"))
        for event in follow(list(waiting.values()), launcher, silence, limit):
            job = training.job(event.run)
            if isinstance(event, Ended):
                if limit and event.state == "done":
                    limit.ends(job)
                end(event)
            else:
                if limit and isinstance(event, Started):
                    limit.begins(job)
                show(event)
    for run, failure in failures.items():
        if not failure.recorded:  # now there may be room on the disk
            failures[run] = _record(training.job(run), failure.ended) or failure
    return failures


def _record(job: Job, ended: Ended) -> Failure | None:
    """See to it that status.json says how a run ended; None if it is done and on record as such."""
    if ended.state == "running":  # whoever trains it writes it
        return Failure(ended)
    said = None
    with suppress(ValueError):
        said = read_record(job.directory / "status.json", Status)
    try:
        if said is None or (said.state, said.reason) != (ended.state, ended.reason):
            write_status(job.directory, ended.state, ended.reason)
    except OSError as error:
        reason = ended.reason or f"it is done, but that could not be recorded: {error}"
        return Failure(Ended(job.run, "failed", reason), recorded=False)
    return None if ended.state == "done" else Failure(ended)


@contextmanager
def _room_for_the_end(root: Path) -> Iterator[None]:
    """Hold some of the disk while runs train, so that on a full one there is room to write down what failed."""
    reserve = root / ".reserve"

    def release() -> None:
        with suppress(OSError):
            reserve.unlink(missing_ok=True)

    try:
        try:
            with create(reserve) as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError:
            release()  # there is not that much; the room is better used by the runs
        yield
    finally:
        release()
