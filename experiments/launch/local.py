"""Runs on this machine: each in a process of its own (worker.py), several at a time."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from experiments.launch.launcher import Advanced, Ended, Event, Job, Started, how_it_ended, runs_where_it_is
from experiments.launch.signals import Stopped, stop_signals_are_blocked, stop_signals_are_collected
from experiments.launch.worker import Message, work

PRELOADED = ["experiments.training.loop", "experiments.training.chosen_objective", "experiments.data.registry"]
PRELOADED += ["torch._dynamo"]  # which PyTorch's optimizers import in their first step: seconds of every run
"""modules that the fork server imports, once for all runs"""
LONGEST_PAUSE = 5
"""seconds; the loop that listens to the runs comes round in half a second, unless its process was stopped"""
OUT_OF_TIME = "there was no time to end it (--for)"
STOP_SECONDS = 10
"""that runs have for a checkpoint when the time is over"""
KILL_SECONDS = 5
"""to wait for a killed process: it may hang in the system, where no signal reaches it"""


@dataclass
class _Running:
    job: Job
    process: Any
    pipe: Connection
    place: int
    """which of those that run at a time it is"""
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
        """What to wait for: it becomes ready when there is something to do."""
        return self.pipe if self.open else self.process.sentinel

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def listen(self) -> Advanced | None:
        """Read all messages of the run; returns its newest progress."""
        latest = None
        try:
            while self.open and self.pipe.poll():
                message: Message = self.pipe.recv()
                self.heard = time.monotonic()
                if isinstance(message, Advanced):
                    latest, self.step = message, message.step
                elif isinstance(message, Ended):
                    self.ended = message
        except (EOFError, OSError):
            self.open = False
        return latest


class Local:
    """Processes of this machine; one that gives no sign of life (a step, a batch of an evaluation) is killed."""

    def __init__(
        self,
        *,
        workers: int = 1,
        run_timeout: float = float("inf"),
        may_start: Callable[[Job], bool] = lambda job: True,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """``may_start`` says of a job whether there is time for it; after the first that may not, none is started.

        ``is_over`` says whether there is no time left at all: then those that run are stopped.
        """
        self._workers, self._run_timeout, self._may_start, self._is_over = workers, run_timeout, may_start, is_over
        # A fork server imports PyTorch once; the processes forked from it start in milliseconds.
        self._context: Any = multiprocessing.get_context("forkserver" if sys.platform.startswith("linux") else "spawn")
        self._forks = hasattr(self._context, "set_forkserver_preload")

    def run(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """As Launcher.run says."""
        if self._forks:
            self._context.set_forkserver_preload(PRELOADED)
            with stop_signals_are_blocked():
                resource_tracker.ensure_running()  # not in _start: it unblocks signals when it starts
        queue, running = list(jobs), list[_Running]()
        with stop_signals_are_collected() as stop:
            looked = time.monotonic()
            while queue or running:
                while queue and len(running) < self._workers and not stop.numbers:
                    if not self._may_start(queue[0]):
                        queue.clear()
                        break
                    job = queue.pop(0)
                    yield Started(job.run)
                    try:
                        places = {entry.place for entry in running}
                        running.append(self._start(job, min({*range(self._workers)} - places)))
                    except (OSError, EOFError) as error:
                        reason = f"its process could not be started ({type(error).__name__}: {error})"
                        yield Ended(job.run, "failed", reason)
                wait([stop.ready, *(entry.sign for entry in running)], timeout=0.5)
                asleep, looked = time.monotonic() - looked, time.monotonic()
                for entry in list(running):
                    if asleep > LONGEST_PAUSE:
                        entry.heard += asleep  # this process was stopped for a while, and heard nobody
                    if (latest := entry.listen()) is not None:
                        yield latest
                    if entry.is_alive and time.monotonic() - entry.heard > self._run_timeout:
                        self._kill_silent(entry)
                    if entry.cut_off or not entry.is_alive:
                        running.remove(entry)
                        yield entry.ended or how_it_ended(entry.job, entry.process.exitcode)
                if stop.numbers:
                    self._stop_all(running, stop.numbers, self._run_timeout)
                    raise Stopped(stop.numbers[0])
                if running and self._is_over():
                    self._stop_all(running, stop.numbers, STOP_SECONDS)
                    for entry in running:
                        late = Ended(entry.job.run, "queued", OUT_OF_TIME)
                        yield entry.ended if entry.ended and entry.ended.state != "queued" else late
                    return

    def _start(self, job: Job, place: int) -> _Running:
        """Raises OSError or EOFError if there is no process to be had."""
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=work, args=(job, sender, place), name=str(job.run))
        if self._forks:
            # A terminal sends its signals to the fork server too, which would die of one while it imports. What is
            # started here inherits that they are blocked; a run unblocks them when it can handle them.
            with stop_signals_are_blocked(), _the_right_package_is_found():
                forkserver.ensure_running()
        process.start()
        sender.close()
        return _Running(job, process, receiver, place)

    def _kill_silent(self, entry: _Running) -> None:
        entry.send_signal(signal.SIGUSR1)  # it writes to its log where it hangs
        time.sleep(0.2)
        entry.send_signal(signal.SIGKILL)
        entry.process.join(timeout=KILL_SECONDS)
        entry.cut_off = True
        silence = f"no sign of life for {self._run_timeout:g} s after step {entry.step} (--run-timeout)"
        entry.ended = entry.ended or Ended(entry.job.run, "failed", f"{silence}, so it was killed")

    def _stop_all(self, running: list[_Running], received: list[int], seconds: float) -> None:
        """Let every run stop after a checkpoint; a second signal, or so many seconds, end the waiting."""
        begun = time.monotonic()
        killed = None
        for entry in running:
            entry.send_signal(signal.SIGTERM)
        while alive := [entry for entry in running if entry.is_alive]:
            if killed is None and (len(received) > 1 or time.monotonic() - begun > seconds):
                killed = time.monotonic()
                for entry in alive:
                    entry.send_signal(signal.SIGKILL)
            if killed is not None and time.monotonic() - killed > KILL_SECONDS:
                return
            wait([entry.sign for entry in alive], timeout=0.2)
            for entry in alive:
                entry.listen()


@contextmanager
def _the_right_package_is_found() -> Iterator[None]:
    """By a Python that is started while the context lasts; its environment alone can tell it where not to look."""
    before = os.environ.get("PYTHONSAFEPATH", "")
    os.environ["PYTHONSAFEPATH"] = before if runs_where_it_is() else "1"
    try:
        yield
    finally:
        os.environ["PYTHONSAFEPATH"] = before
