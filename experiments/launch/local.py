"""Running the runs of a comparison: each in a process of its own, several at a time (worker.py).

Whatever ends a run's process, the others go on, and its status.json says what happened.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from experiments.launch.signals import Stopped, stop_signals_are_blocked, stop_signals_are_collected
from experiments.launch.worker import Advanced, Ended, Job, Run, work, write_run_config, write_status
from experiments.records.record import is_finished, run_directory, run_status

RESERVE_BYTES = 8 * 2**20
"""more than the statuses and the report of a comparison of a few thousand steps take"""
LONGEST_PAUSE = 5
"""seconds; the loop that listens to the runs comes round in half a second, unless its process was stopped"""
KILL_SECONDS = 5
"""to wait for a killed process: it may hang in the system, where no signal reaches it"""


class Display(Protocol):
    """Who is told what happens; see progress.py."""

    def started(self, run: Run) -> None: ...
    def advanced(self, run: Run, step: int, loss: float, tokens_per_second: float) -> None: ...
    def ended(self, run: Run, state: str, reason: str | None) -> None: ...


@dataclass(frozen=True)
class Failure:
    """A run that is not done; ``recorded`` tells whether its status.json says so."""

    ended: Ended
    recorded: bool = True

    @property
    def reason(self) -> str:
        return self.ended.reason or self.ended.state


class _Patient:
    """A display whose output may go nowhere, to a full disk say: the runs are more important."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def started(self, run: Run) -> None:
        with suppress(OSError):
            self._display.started(run)

    def advanced(self, run: Run, step: int, loss: float, tokens_per_second: float) -> None:
        with suppress(OSError):
            self._display.advanced(run, step, loss, tokens_per_second)

    def ended(self, run: Run, state: str, reason: str | None) -> None:
        with suppress(OSError):
            self._display.ended(run, state, reason)


@dataclass
class _Running:
    process: Any
    pipe: Connection
    heard: float = field(default_factory=time.monotonic)
    step: int = 0
    open: bool = True
    ended: Ended | None = None
    cut_off: bool = False

    @property
    def is_alive(self) -> bool:
        # When the fork server is killed, its children seem to have ended; their end of the pipe tells.
        return self.open or self.process.is_alive()

    @property
    def sign(self) -> Any:
        """What becomes ready when there is something to do."""
        return self.pipe if self.open else self.process.sentinel

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)


def launch_runs(
    job: Job, runs: list[Run], workers: int, display: Display, run_timeout: float = float("inf")
) -> dict[Run, Failure]:
    """Run every run that is not done; returns the failed ones by run (an empty dict if all is well).

    A run that gives no sign of life (a step, a batch of an evaluation) for ``run_timeout`` seconds is killed and
    counts as failed.

    Raises:
        Stopped: SIGINT or SIGTERM came.
    """
    failures: dict[Run, Failure] = {}
    with _room_for_the_end(job.root):
        _run(job, runs, workers, _Patient(display), run_timeout, failures)
    for run, failure in failures.items():
        if not failure.recorded:
            failures[run] = _record(job, run, failure.ended) or failure
    return failures


def _run(
    job: Job,
    runs: list[Run],
    workers: int,
    display: Display,
    run_timeout: float,
    failures: dict[Run, Failure],
) -> None:
    # A fork server imports PyTorch once; the processes forked from it start in milliseconds.
    context: Any = multiprocessing.get_context("forkserver" if sys.platform.startswith("linux") else "spawn")
    if hasattr(context, "set_forkserver_preload"):
        context.set_forkserver_preload(["experiments.training.loop", "experiments.data.registry"])
        resource_tracker.ensure_running()  # before signals are blocked: it unblocks them when it starts
    queue: list[Run] = []
    running: dict[Run, _Running] = {}
    for run in runs:
        try:
            if _prepare(job, run):
                queue.append(run)
        except OSError as error:
            ended = Ended("failed", f"{type(error).__name__}: {error}")
            failures[run] = Failure(ended, recorded=False)
            display.started(run)
            display.ended(run, ended.state, ended.reason)
    with stop_signals_are_collected() as stop:
        looked = time.monotonic()
        while queue or running:
            if stop.numbers:
                _stop_all(running, stop.numbers, run_timeout)
                raise Stopped(stop.numbers[0])
            while queue and len(running) < workers and not stop.numbers:
                run = queue.pop(0)
                display.started(run)
                try:
                    running[run] = _start(context, job, run)
                except (OSError, EOFError) as error:
                    ended = Ended("failed", f"its process could not be started ({type(error).__name__}: {error})")
                    failures[run] = _record(job, run, ended) or Failure(ended)
                    display.ended(run, ended.state, ended.reason)
            wait([stop.ready, *(entry.sign for entry in running.values())], timeout=0.5)
            asleep, looked = time.monotonic() - looked, time.monotonic()
            if asleep > LONGEST_PAUSE:
                # This process was stopped for a while, and heard nobody.
                for entry in running.values():
                    entry.heard += asleep
            for run, entry in list(running.items()):
                _listen(run, entry, display)
                if entry.is_alive and time.monotonic() - entry.heard > run_timeout:
                    _kill_silent(entry, run_timeout)
                if entry.cut_off or not entry.is_alive:
                    del running[run]
                    ended = entry.ended or _unexpected_end(entry.process.exitcode)
                    failure = _record(job, run, ended)
                    if failure is not None:
                        failures[run] = failure
                        ended = failure.ended
                    display.ended(run, ended.state, ended.reason)
        if stop.numbers:
            raise Stopped(stop.numbers[0])


def _prepare(job: Job, run: Run) -> bool:
    """Write what is known of a run before it runs; False if it is done. Raises OSError if it cannot be written."""
    if is_finished(job.root, run.variant, run.seed, job.config.steps):
        return False
    directory = run_directory(job.root, run.variant, run.seed)
    directory.mkdir(parents=True, exist_ok=True)
    write_run_config(job, run)
    write_status(job, run, "queued")
    return True


def _start(context: Any, job: Job, run: Run) -> _Running:
    """Raises OSError or EOFError if there is no process to be had."""
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(job, run, sender), name=str(run))
    with stop_signals_are_blocked():
        # A terminal sends its signals to the fork server too, which would die of one while it imports. What is started
        # here inherits that they are blocked; a run unblocks them when it can handle them.
        if hasattr(context, "set_forkserver_preload"):
            forkserver.ensure_running()
    process.start()
    sender.close()
    return _Running(process, receiver)


def _listen(run: Run, entry: _Running, display: Display) -> None:
    """Hear all that a run has said; only the newest progress is shown."""
    latest = None
    for message in _drain(entry):
        entry.heard = time.monotonic()
        if isinstance(message, Advanced):
            latest = message
            entry.step = message.step
        elif isinstance(message, Ended):
            entry.ended = message
    if latest is not None:
        display.advanced(run, latest.step, latest.loss, latest.tokens_per_second)


def _drain(entry: _Running) -> list[Any]:
    messages = []
    try:
        while entry.open and entry.pipe.poll():
            messages.append(entry.pipe.recv())
    except (EOFError, OSError):
        entry.open = False
    return messages


def _kill_silent(entry: _Running, run_timeout: float) -> None:
    entry.send_signal(signal.SIGUSR1)  # it writes to its log where it hangs
    time.sleep(0.2)
    entry.send_signal(signal.SIGKILL)
    entry.process.join(timeout=KILL_SECONDS)
    entry.cut_off = True
    entry.ended = entry.ended or Ended(
        "failed", f"no sign of life for {run_timeout:g} s after step {entry.step} (--run-timeout), so it was killed"
    )


def _unexpected_end(exitcode: int | None) -> Ended:
    """What is known of a process that ended without a word."""
    if exitcode == -signal.SIGKILL:
        cause = "was killed (SIGKILL), as the system does when memory runs out"
    elif exitcode is not None and exitcode < 0:
        cause = f"ended with signal {signal.Signals(-exitcode).name}"
    else:
        cause = f"ended with exit status {exitcode} and without a word"
    return Ended("failed", f"its process {cause}")


def _record(job: Job, run: Run, ended: Ended) -> Failure | None:
    """See to it that status.json says how a run ended; None if it is done and on record as such."""
    try:
        try:
            status = run_status(job.root, run.variant, run.seed)
            recorded: Ended | None = Ended(status.state, status.reason)
        except ValueError:
            recorded = None
        if recorded != ended:
            write_status(job, run, ended.state, ended.reason)
    except OSError as error:
        return Failure(Ended("failed", ended.reason or f"it is done, but that could not be recorded: {error}"), False)
    return None if ended.state == "done" else Failure(ended)


def _stop_all(running: dict[Run, _Running], received: list[int], run_timeout: float) -> None:
    """Let every run stop after a checkpoint; a second signal, or the time a run may be silent, ends the waiting."""
    begun = time.monotonic()
    killed = None
    for entry in running.values():
        entry.send_signal(signal.SIGTERM)
    while alive := [entry for entry in running.values() if entry.is_alive]:
        if killed is None and (len(received) > 1 or time.monotonic() - begun > run_timeout):
            killed = time.monotonic()
            for entry in alive:
                entry.send_signal(signal.SIGKILL)
        if killed is not None and time.monotonic() - killed > KILL_SECONDS:
            return
        wait([entry.sign for entry in alive], timeout=0.2)
        for entry in alive:
            _drain(entry)


@contextmanager
def _room_for_the_end(root: Path) -> Iterator[None]:
    """Hold some of the disk while runs train, so that on a full one there is room to write down what failed."""
    reserve = root / ".reserve"
    try:
        try:
            with open(reserve, "wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError:
            _remove(reserve)  # there is not that much; the room is better used by the runs
        yield
    finally:
        _remove(reserve)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
