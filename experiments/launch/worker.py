"""A run's process: it trains one variant with one seed, says that it lives, and always says how it ended.

All it is given is the run's directory. What must last goes into ``status.json``; a process of local.py also tells what
happens through a pipe, writes what is printed into ``log.txt``, and stops, after a checkpoint, when nobody listens.
"""

import faulthandler
import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from filelock import FileLock, Timeout

from experiments.config import Config
from experiments.extensions import load_plugin
from experiments.launch.launcher import Advanced, Ended, Job, Run
from experiments.launch.progress import closing_line, rates
from experiments.launch.runs import JobRecord, write_status
from experiments.launch.signals import STOP_SIGNALS, stop_signals_are_collected
from experiments.records.files import check_links, open_to_append, read_file, remove_leftovers
from experiments.records.record import is_finished, read_record, run_directory
from experiments.records.schema import RunConfig

if TYPE_CHECKING:
    from experiments.training.objectives import Objective

LOCK_SECONDS = 300


Message = Advanced | Ended | None
"""what a run says; None: it made progress, if only a batch of an evaluation"""


@dataclass
class Listener:
    """Receives a run's progress, at most every so many ``seconds``, and can tell it to stop."""

    hear: Callable[[Message], object]
    stop: list[int]
    seconds: float
    last: float = float("-inf")

    def tell(self, message: Message, now: bool = True) -> None:
        if not now and time.monotonic() - self.last < self.seconds:
            return
        try:
            self.hear(message)
            self.last = time.monotonic()
        except OSError:
            self.stop.append(signal.SIGTERM)


def train_directory(path: Path) -> int:
    """Train what is left of the run in a directory, in this process, and print how it goes.

    Returns the exit status: 0 done, 1 failed, 130 or 143 stopped after a checkpoint.

    Raises:
        ValueError: it is not the directory of a run that a comparison has made.
    """
    job, record, _ = read_job(path)
    steps = Config(**record.config).steps
    check_links(job.directory)

    def tell(message: Message) -> None:
        if isinstance(message, Advanced):
            print(f"{job.run}: step {message.step}/{steps}, {rates(message)}", flush=True)

    with stop_signals_are_collected() as received:
        try:
            done = is_finished(job.root, *job.run, steps)
            ended = Ended(job.run, "done") if done else _work(job, Listener(tell, received.numbers, seconds=15))
        except OSError as error:
            ended = Ended(job.run, "failed", f"how it ended could not be recorded: {error}")
    print(closing_line(ended))
    return {"done": 0, "failed": 1}.get(ended.state, 128 + received.numbers[0] if received.numbers else 1)


def read_job(path: Path) -> tuple[Job, RunConfig, JobRecord]:
    """The job of a run's directory, and its config.json and job.json. Raises ValueError if it is no such directory."""
    directory = Path(os.path.abspath(path))
    config = read_record(directory / "config.json", RunConfig, "give the directory of a run: COMPARISON/VARIANT/seedK")
    job = Job(Run(config.variant, config.seed), directory)
    if not str(directory).endswith(f"{os.sep}{run_directory(Path(), config.variant, config.seed)}"):
        raise ValueError(f"{path} holds the config.json of {job.run}; give the directory of a run: .../VARIANT/seedK")
    file, remedy = directory / "job.json", "run its comparison again, which writes it"
    try:
        # The paths in it need not be text, which msgspec does not read.
        return job, config, msgspec.convert(json.loads(read_file(file, remedy)), JobRecord)
    except (msgspec.ValidationError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is damaged ({error}); {remedy}") from None


def load_objective(job: Job, record: RunConfig, needed: JobRecord) -> "Objective":
    """What a run is trained for. Raises ValueError if its data, or what comes with them, cannot be had here."""
    from experiments.data.registry import load_data
    from experiments.training.chosen_objective import make_objective

    config = Config(**record.config)
    data_dir, data_file = (None if path is None else Path(path) for path in (needed.data_dir, needed.data_file))
    return make_objective(load_data(config.data, data_dir, data_file), config, job.root)


def work(job: Job, sender: Connection) -> None:
    """The body of a process that local.py starts."""
    stop: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # the process that this one was forked from blocks them
    listener = Listener(sender.send, stop, seconds=0.2)
    try:
        log = open_to_append(job.directory / "log.txt")
    except OSError as error:
        listener.tell(Ended(job.run, "failed", _reason(error)))
        return
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    faulthandler.enable()
    if hasattr(faulthandler, "register"):
        # The parent asks for it before it kills a run that gives no sign of life.
        faulthandler.register(signal.SIGUSR1)
    print(f"{datetime.now(UTC).isoformat(timespec='seconds')} process {os.getpid()}: {job.run}", flush=True)
    _work(job, listener)


def _work(job: Job, listener: Listener) -> Ended:
    """Train, and see to it that how it ended is told and on record."""
    # Held until then, so that nobody else's status is overwritten.
    lock = FileLock(job.directory / ".lock")
    try:
        try:
            check_links(job.directory)
            ended = _train(job, lock, listener)
        except Exception as error:
            ended = Ended(job.run, "failed", _reason(error))
            with suppress(OSError):  # of a full disk, with the log on it; the reason is told
                traceback.print_exc()
        # The listener is told first: if the status cannot be written, it knows why.
        listener.tell(ended)
        write_status(job.directory, ended.state, ended.reason)
        return ended
    finally:
        lock.release()


def _train(job: Job, lock: FileLock, listener: Listener) -> Ended:
    import torch

    from experiments.training.loop import RunFailed, RunStopped, train_run
    from experiments.variants import get_variant

    def progress(step: int, loss: float, tokens_per_second: float) -> None:
        event = Advanced(job.run, step, loss, tokens_per_second, objective.loss_unit)
        listener.tell(event, now=step == config.steps)

    def should_stop() -> bool:
        listener.tell(None, now=False)
        return bool(listener.stop)

    def note(sentence: str) -> None:
        print(sentence, flush=True)
        write_status(job.directory, "running", note=sentence)

    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not lock.is_locked:  # the orphan of a killed run lets go of it within a step
            if should_stop():
                raise RunStopped("stopped before its first step")
            if time.monotonic() > deadline:
                raise RunFailed(f"another process has been training it in the same directory for {LOCK_SECONDS} s")
            with suppress(Timeout):
                lock.acquire(timeout=0.5)
        remove_leftovers(job.directory)
        write_status(job.directory, "running")
        _, record, needed = read_job(job.directory)
        for module in needed.plugins:
            load_plugin(module)
        config, objective = Config(**record.config), load_objective(job, record, needed)
        if objective.corpus.sha256 != record.data_sha256:
            raise RunFailed("the data set changed while the comparison ran")
        what = get_variant(job.run.variant), job.run.seed, config, objective, torch.device(needed.device)
        train_run(job.directory, *what, progress=progress, should_stop=should_stop, note=note)
        return Ended(job.run, "done")
    except RunStopped as error:
        return Ended(job.run, "queued", str(error))
    except RunFailed as error:
        return Ended(job.run, "failed", str(error))


def _reason(error: Exception) -> str:
    """An exception on one line; its traceback is in the log."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]
