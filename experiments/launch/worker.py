"""A run's process: it trains one variant with one seed, says that it lives, and always says how it ended.

What it tells goes through a pipe to the process that started it (launch.py), and what must last into ``status.json``
and ``log.txt``. It stops by itself, after a checkpoint, on SIGTERM or when nobody listens any more.
"""

import faulthandler
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from experiments.config import Config
from experiments.launch.signals import STOP_SIGNALS
from experiments.records.files import remove_leftovers
from experiments.records.record import run_directory, run_status, write_record
from experiments.records.schema import RunConfig, State, Status

LOCK_SECONDS = 300
SIGN_SECONDS = 0.2
"""between two messages of a run at least"""
LONGEST_REASON = 400


@dataclass(frozen=True)
class Run:
    """A variant's name and a seed."""

    variant: str
    seed: int

    def __str__(self) -> str:
        return f"{self.variant} seed {self.seed}"


@dataclass(frozen=True)
class Job:
    """What a run's process needs to know; all of it can be sent to another process."""

    root: Path
    config: Config
    data_dir: Path | None
    data_file: Path | None
    data_sha256: str
    device: str
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """by variant, what its configuration has besides; steps and data are the same for all"""

    def config_of(self, variant: str) -> Config:
        return replace(self.config, **self.settings.get(variant, {}))


@dataclass(frozen=True)
class Alive:
    """The run made progress, if only a batch of an evaluation."""


@dataclass(frozen=True)
class Advanced:
    """So many steps are done; the loss is in nats per token."""

    step: int
    loss: float
    tokens_per_second: float


@dataclass(frozen=True)
class Ended:
    """The run's last word: done, failed, or queued if it was stopped."""

    state: State
    reason: str | None


def work(job: Job, run: Run, sender: Connection) -> None:
    """The body of a run's process."""
    stop: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # the process that this one was forked from blocks them
    parent = _Parent(sender, stop)
    # Held to the end of the process, so that nobody else's status is overwritten.
    lock = FileLock(run_directory(job.root, run.variant, run.seed) / ".lock")
    try:
        log = open(log_path(job.root, run), "a")  # noqa: SIM115 - to the end of the process
    except OSError as error:
        parent.tell(Ended("failed", _reason(error)))
        return
    try:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        faulthandler.enable()
        if hasattr(faulthandler, "register"):
            # The parent asks for it before it kills a run that gives no sign of life.
            faulthandler.register(signal.SIGUSR1)
        print(f"{datetime.now(UTC).isoformat(timespec='seconds')} process {os.getpid()}: {run}", flush=True)
        ended = _train(job, run, lock, parent, stop)
    except Exception as error:
        ended = Ended("failed", _reason(error))
        with suppress(OSError):  # of a full disk, with the log on it; the reason goes through the pipe
            traceback.print_exc()
    # The parent is told first: if the status cannot be written, it knows why.
    parent.tell(ended)
    write_status(job, run, ended.state, ended.reason)


def write_status(job: Job, run: Run, state: State, reason: str | None = None, note: str | None = None) -> None:
    """Write a run's status.json; the notes of earlier runs are kept. Raises OSError if it cannot be written."""
    try:
        notes = list(run_status(job.root, run.variant, run.seed).notes)
    except ValueError:
        notes = ["its status.json was damaged and was written anew"]
    if note is not None and note not in notes:
        notes.append(note)
    directory = run_directory(job.root, run.variant, run.seed)
    write_record(directory / "status.json", Status(state=state, reason=reason, notes=notes, time=time.time()))


def write_run_config(job: Job, run: Run) -> None:
    """Write a run's config.json. Raises OSError if it cannot be written."""
    config = asdict(job.config_of(run.variant))
    record = RunConfig(variant=run.variant, seed=run.seed, data_sha256=job.data_sha256, config=config)
    write_record(run_directory(job.root, run.variant, run.seed) / "config.json", record)


def log_path(root: Path, run: Run) -> Path:
    return run_directory(root, run.variant, run.seed) / "log.txt"


class _Parent:
    """The pipe to the parent. When nobody reads it any more, the run is to stop."""

    def __init__(self, sender: Connection, stop: list[int]) -> None:
        self._sender = sender
        self._stop = stop
        self._last = 0.0

    def tell(self, message: Alive | Advanced | Ended) -> None:
        try:
            self._sender.send(message)
            self._last = time.monotonic()
        except OSError:
            self._stop.append(signal.SIGTERM)

    def tell_sometimes(self, message: Alive | Advanced) -> None:
        if time.monotonic() - self._last >= SIGN_SECONDS:
            self.tell(message)


def _train(job: Job, run: Run, lock: FileLock, parent: _Parent, stop: list[int]) -> Ended:
    import torch

    from experiments.data.registry import load_corpus
    from experiments.training.loop import RunFailed, RunStopped, train_run
    from experiments.training.objectives import make_objective
    from experiments.variants import get_variant

    def progress(step: int, loss: float, tokens_per_second: float) -> None:
        tell = parent.tell if step == job.config.steps else parent.tell_sometimes
        tell(Advanced(step, loss, tokens_per_second))

    def should_stop() -> bool:
        parent.tell_sometimes(Alive())
        return bool(stop)

    def note(sentence: str) -> None:
        print(sentence, flush=True)
        write_status(job, run, "running", note=sentence)

    directory = run_directory(job.root, run.variant, run.seed)
    try:
        _acquire(lock, should_stop)
        remove_leftovers(directory)
        write_status(job, run, "running")
        corpus = load_corpus(job.config.data, job.data_dir, job.data_file)
        if corpus.sha256 != job.data_sha256:
            raise RunFailed("the data set changed while the comparison ran")
        objective = make_objective(corpus, job.config, job.root)
        train_run(
            directory,
            get_variant(run.variant),
            run.seed,
            job.config_of(run.variant),
            objective,
            torch.device(job.device),
            progress=progress,
            should_stop=should_stop,
            note=note,
        )
    except RunStopped as error:
        return Ended("queued", str(error))
    except RunFailed as error:
        return Ended("failed", str(error))
    return Ended("done", None)


def _acquire(lock: FileLock, should_stop: Callable[[], bool]) -> None:
    """Take the run's lock; the orphan of a killed run lets go of it within a step.

    Raises:
        RunStopped: this process is to stop.
        RunFailed: the lock was not to be had.
    """
    from experiments.training.loop import RunFailed, RunStopped

    deadline = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < deadline:
        if should_stop():
            raise RunStopped("stopped before its first step")
        try:
            lock.acquire(timeout=0.5)
            return
        except Timeout:
            continue
    raise RunFailed(f"another process has been training it in the same directory for {LOCK_SECONDS} s")


def _reason(error: Exception) -> str:
    """An exception on one line; its traceback is in the log."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]
