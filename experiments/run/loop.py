"""The one loop over all launchers: it starts runs, reads of their files how far they are, and stops them.

A launcher starts processes, on this machine or others. Nothing is sent from a run to whoever started it: what lasts
(status.json, metrics.jsonl, checkpoints) is written by the run itself, and read here as ``watch`` reads it. Whatever
ends a run, the others go on.
"""

import json
import math
import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from experiments.objects import Job, Run
from experiments.records.lock import holder_of
from experiments.records.record import read_record
from experiments.records.schema import State, Status
from experiments.run.plan import Training, prepare_runs, write_status
from experiments.run.signals import Stopped, stop_signals_are_collected
from experiments.run.time_limit import TimeLimit

LOOK_SECONDS, LOOK_ELSEWHERE = 0.1, 1.0
"""between two looks at the runs"""
LONGEST_LOOK = 5
"""seconds that one look counts for in a run's silence: this process may have been stopped for longer"""
OUT_OF_TIME = "there was no time to end it (--for)"
STOP_SECONDS = 10
"""that runs have for a checkpoint when the time is over"""
UNRECORDED = 74
"""exit status of a run that could not write how it ended"""


class Process(Protocol):
    """A run that was started, or waits somewhere to be."""

    def poll(self) -> int | str | None:
        """Its exit status (negative: the signal's number) or, where there is none, why; None until it has ended."""

    def stop(self, *, now: bool) -> None:
        """Let it stop after a checkpoint, or kill it ``now``."""


class Launcher(Protocol):
    """Made with the keywords ``workers``, the runs at a time (None: not said), and ``needs``, what a run takes.

    One whose class says ``elsewhere = True`` has its runs on other machines: it knows how many there is room for.
    """

    room: int
    """runs that are started at a time"""

    def start(self, jobs: Sequence[Job]) -> Sequence[Process]:
        """Start each job's command. Raises OSError or ValueError, of one line, if that cannot be done."""


class Started(NamedTuple):
    """A run has started, or begun again elsewhere because ``lost``, the process that trained it, has ended."""

    run: Run
    lost: str = ""


class Advanced(NamedTuple):
    """A run has done this many steps."""

    run: Run
    step: int
    loss: float
    tokens_per_second: float


class Ended(NamedTuple):
    """A run has ended: done, failed, queued if it was stopped, or running if another process trains it."""

    run: Run
    state: State
    reason: str | None = None


Event = Started | Advanced | Ended


def follow(
    training: Training,
    runs: Sequence[Run],
    launcher: Launcher,
    silence: float = math.inf,
    limit: TimeLimit | None = None,
) -> Iterator[Event]:
    """Train every run that is not done and that there is time for; of each there is an Ended, and its status says it.

    A run that writes nothing for so many seconds of ``silence`` is killed. The ``limit`` learns how long runs take.

    Raises:
        Stopped: SIGINT or SIGTERM came, and all have stopped after a checkpoint; a second signal kills them.
        ValueError: the launcher can start no more; all have been told to stop.
    """
    waiting, running = deque[Job](), list[_Running]()
    for run in runs:
        try:
            if limit:
                training.drop(run)  # a machine may have been taken away while it was trained there
            waiting.extend(prepare_runs(training, [run]))
        except OSError as error:
            yield _recorded(training.job(run), "failed", f"{type(error).__name__}: {error}")
    elsewhere = bool(getattr(launcher, "elsewhere", False))
    with stop_signals_are_collected() as stop:
        looked = time.monotonic()
        while running or (waiting and not stop):
            if not stop and (some := _next(waiting, launcher.room - len(running), limit)):
                yield from _start([_Running(job, elsewhere) for job in some], launcher, running)
            time.sleep(LOOK_ELSEWHERE if elsewhere else LOOK_SECONDS)
            passed, looked = time.monotonic() - looked, time.monotonic()
            out_of_time = bool(running) and limit is not None and limit.is_over()
            for each in list(running):
                each.silence += min(passed, LONGEST_LOOK)
                yield from each.news()
                if (status := each.process.poll()) is not None:
                    running.remove(each)
                    yield (ended := each.ended(status))
                    if limit and ended.state == "done":
                        limit.ends(each.job)
                    if limit and limit.reached and ended.state == "queued":
                        training.drop(ended.run)
                elif out_of_time:
                    each.stop(len(stop) > 1, STOP_SECONDS, Ended(each.job.run, "queued", OUT_OF_TIME))
                elif stop:
                    each.stop(len(stop) > 1, silence)
                elif each.has_begun and each.silence > silence:
                    told = f"no sign of life for {silence:g} s after step {each.step} (--run-timeout), so it was killed"
                    each.stop(True, silence, Ended(each.job.run, "failed", told))
    if stop:
        raise Stopped(stop[0])


def _next(waiting: deque[Job], room: int, limit: TimeLimit | None) -> list[Job]:
    """Those that are started now; after the first that there is no time for, none is."""
    some = list[Job]()
    while waiting and len(some) < room:
        if limit is None or limit.allows(waiting[0]):
            some.append(waiting.popleft())
        else:
            waiting.clear()
    return some


def _start(some: "list[_Running]", launcher: Launcher, running: "list[_Running]") -> Iterator[Event]:
    yield from (Started(each.job.run) for each in some if each.has_begun)
    try:
        processes = launcher.start([each.job for each in some])
    except OSError as error:
        reason = f"its process could not be started ({type(error).__name__}: {error})"
        yield from (_recorded(each.job, "failed", reason) for each in some)
        return
    except ValueError:
        for each in running:
            each.process.stop(now=False)
        raise
    for each, process in zip(some, processes, strict=True):
        each.process = process
        running.append(each)


class _Running:
    """A run's process, what is known of it from the run's files, and what was done to it."""

    process: Process

    def __init__(self, job: Job, elsewhere: bool) -> None:
        self.job, self._elsewhere = job, elsewhere
        self.has_begun = not elsewhere
        """whether it was told that it started: elsewhere a run may wait for long"""
        self.step, self.silence = 0, 0.0
        self._asked, self._is_killed = math.inf, False
        """since when it is to stop, and whether it was killed"""
        self._instead: Ended | None = None
        """how it ends, if that which stops it ends it"""
        self._holders = [holder_of(job.directory)]  # of its lease; the first one may be of long ago
        self._metrics = job.directory / "metrics.jsonl"
        self._read = self._metrics.stat().st_size if self._metrics.exists() else 0
        self._signs = _signs(job.directory)

    def news(self) -> Iterator[Event]:
        """That it started, or begun again, and its newest progress."""
        if (signs := _signs(self.job.directory)) == self._signs:
            return
        self._signs, self.silence = signs, 0.0
        if not self.has_begun:
            self.has_begun = True
            yield Started(self.job.run)
        if self._elsewhere and (holder := holder_of(self.job.directory)) and holder not in self._holders:
            self._holders.append(holder)
            if len(self._holders) > 2:
                yield Started(self.job.run, lost=str(self._holders[-2]))
        for row in [row for row in self._rows() if row.get("split") == "train"][-1:]:
            self.step = row["step"]
            yield Advanced(self.job.run, self.step, row["loss"], row["tokens_per_second"])

    def _rows(self) -> list[dict[str, Any]]:
        """What was written since the last look, whole lines."""
        with suppress(OSError, ValueError), open(self._metrics, "rb") as file:
            file.seek(self._read)
            lines, newline, _ = file.read().rpartition(b"\n")
            self._read += len(lines + newline)
            return [json.loads(line) for line in lines.splitlines()]
        return []

    def stop(self, now: bool, seconds: float, instead: Ended | None = None) -> None:
        """Let it stop after a checkpoint, or kill it: ``now``, or after so many seconds. ``instead`` is how it ends."""
        self._instead = instead or self._instead
        if self._asked == math.inf and not now:
            self._asked = time.monotonic()
            self.process.stop(now=False)
        if not self._is_killed and (now or time.monotonic() - self._asked > seconds):
            self._is_killed = True
            self.process.stop(now=True)

    def ended(self, status: int | str) -> Ended:
        """How it ended; its status.json says so from then on."""
        ended = Ended(self.job.run, *how_it_ended(self.job, status))
        if self._instead and ended.state in (("queued", "failed") if self._is_killed else ("queued",)):
            ended = self._instead
        return _recorded(self.job, *ended[1:])


def _signs(directory: Path) -> list[tuple[int, int]]:
    """What changes when a run does something; by this machine's clock, for those of others need not agree."""
    found = list[tuple[int, int]]()
    for name in ("status.json", "metrics.jsonl"):
        with suppress(OSError):
            status = os.stat(directory / name)
            found.append((status.st_mtime_ns, status.st_size))
    return found


def how_it_ended(job: Job, status: int | str) -> tuple[State, str | None]:
    """How a run ended: by its status.json, or else by its exit status (negative: the signal's number) or a reason."""
    if status == UNRECORDED:
        told = "how it ended could not be recorded; is there room on the disk, and may its directory be written?"
        return "failed", told
    with suppress(ValueError):
        said = read_record(job.directory / "status.json", Status)
        if said.state in ("done", "failed") or said.reason is not None:
            return said.state, said.reason
        if said.state == "running" and status == 1:
            return "running", "another process trains it"
    if isinstance(status, str):
        return "failed", status
    cause = f"ended with exit status {status} and without a word"
    if status == -signal.SIGKILL:
        cause = "was killed (SIGKILL), as the system does when memory runs out"
    elif status < 0:
        cause = f"ended with signal {signal.Signals(-status).name}"
    return "failed", f"its process {cause}"


def _recorded(job: Job, state: State, reason: str | None) -> Ended:
    """See to it that status.json says how a run ended, where there is room; whoever still trains it writes it."""
    if state in ("failed", "queued"):
        with suppress(OSError):
            write_status(job.directory, state, reason)
    return Ended(job.run, state, reason)
