"""Has a launcher train the runs of a comparison, and sees to it that status.json says how each ended.

Whatever ends a run, the others go on.
"""

import math
from contextlib import suppress

from experiments.objects import Job, Run
from experiments.records.record import read_record
from experiments.records.schema import Status
from experiments.run.display import Display
from experiments.run.loop import Ended, Event, Launcher, Started, follow
from experiments.run.plan import Training, needed_by, prepared, write_status
from experiments.run.time_limit import TimeLimit


def train_runs(
    training: Training,
    runs: list[Run],
    launcher: Launcher,
    display: Display,
    limit: TimeLimit | None = None,
    silence: float = math.inf,
) -> dict[Run, Ended]:
    """Run every run that is not done; returns those that are not done then (an empty dict if all is well).

    Those that there was no time for stay queued. ``limit``, ``silence``: see ``follow``.

    Raises:
        Stopped: SIGINT or SIGTERM came.
    """
    failures: dict[Run, Ended] = {}

    def show(event: Event) -> None:
        with suppress(OSError):  # of an output that goes nowhere, to a full disk say: the runs are more important
            display.show(event)

    def end(ended: Ended) -> None:
        ended = _recorded(training.job(ended.run), ended)
        if limit and limit.reached and ended.state == "queued":
            training.drop(ended.run)
        elif ended.state != "done":
            failures[ended.run] = ended
        show(ended)

    waiting = list[Job]()
    needed = needed_by(training)
    for run in runs:
        try:
            if not training.is_finished(run):
                if limit:
                    training.drop(run)  # a machine may have been taken away while it was trained there
                waiting.append(prepared(training, run, needed))
        except OSError as error:
            show(Started(run))
            end(Ended(run, "failed", f"{type(error).__name__}: {error}"))
    for event in follow(waiting, launcher, silence, limit):
        if isinstance(event, Ended):
            end(event)
        else:
            show(event)
    for run, ended in failures.items():
        _recorded(training.job(run), ended)  # now there may be room on the disk
    return failures


def _recorded(job: Job, ended: Ended) -> Ended:
    """See to it that status.json says how a run ended; it has failed if that cannot be recorded."""
    if ended.state == "running":  # whoever trains it writes it
        return ended
    said = None
    with suppress(ValueError):
        said = read_record(job.directory / "status.json", Status)
    try:
        if said is None or (said.state, said.reason) != (ended.state, ended.reason):
            write_status(job.directory, ended.state, ended.reason)
    except OSError as error:
        reason = ended.reason or f"it is done, but that could not be recorded: {error}"
        return Ended(job.run, "failed", reason)
    return ended
