"""A run's process: it trains one variant with one seed, says that it lives, and always says how it ended.

All it is given is the run's directory. What must last goes into ``status.json``; a process of local.py also tells what
happens through a pipe, writes what is printed into ``log.txt``, and stops, after a checkpoint, when nobody listens.
"""

import faulthandler
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

from filelock import FileLock, Timeout
from msgspec import structs

from experiments.config import Config
from experiments.launch.companions import check_can_share, companions, started_processes
from experiments.launch.launcher import Advanced, Ended, Job
from experiments.launch.progress import closing_line, rates
from experiments.launch.runs import write_job, write_status, write_that_it_is_trained
from experiments.launch.signals import STOP_SIGNALS, stop_signals_are_collected, stop_when_orphaned
from experiments.launch.training_job import read_job, take_part, train_job
from experiments.records.files import check_links, open_to_append, remove_leftovers
from experiments.records.lease import Lease, LeaseLost
from experiments.records.record import is_finished

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


def train_directory(path: Path, trackers: Sequence[str] = ()) -> int:
    """Train what is left of the run in a directory, in this process, and print how it goes.

    Where torchrun has started several processes, this is one of them, and they train it together. ``trackers`` follow
    the run from now on; none: those that its comparison was run with.

    Returns the exit status: 0 done, 1 failed, 130 or 143 stopped after a checkpoint.

    Raises:
        ValueError: it is not the directory of a run that a comparison has made, or so many processes cannot train it.
    """
    job, record, needed = read_job(path)
    config, (count, rank) = Config(**record.config), started_processes()
    steps = config.steps
    check_can_share(config.batch_size, count if count > 1 else needed.nproc)
    check_links(job.directory)
    if rank > 0:
        return take_part(job)
    if trackers:
        write_job(job, structs.replace(needed, trackers=list(trackers)))

    def tell(message: Message) -> None:
        if isinstance(message, Advanced):
            print(f"{job.run}: step {message.step}/{steps}, {rates(message)}", flush=True)

    with stop_signals_are_collected() as received:
        try:
            done = is_finished(job.root, *job.run, steps)
            listener = Listener(tell, received.numbers, seconds=15)
            ended = Ended(job.run, "done") if done else _work(job, listener, started=count)
        except OSError as error:
            ended = Ended(job.run, "failed", f"how it ended could not be recorded: {error}")
    print(closing_line(ended))
    return {"done": 0, "failed": 1}.get(ended.state, 128 + received.numbers[0] if received.numbers else 1)


def work(job: Job, sender: Connection, place: int = 0) -> None:
    """The body of a process that local.py starts; its ``place`` among those beside it says which GPUs are its own."""
    stop: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    stop_when_orphaned(stop)
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
    with suppress(ValueError):  # of a damaged job.json, of which the run will tell
        _choose_gpus(place, read_job(job.directory)[2].nproc)
    _work(job, listener)


def _work(job: Job, listener: Listener, started: int = 1) -> Ended:
    """Train, and see to it that how it ended is told and on record; of ``started`` processes as the first one."""
    # Held until then, so that nobody else's status is overwritten.
    lock, lease = FileLock(job.directory / ".lock"), Lease(job.directory)
    try:
        try:
            check_links(job.directory)
            ended = _train(job, lock, lease, listener, started)
        except Exception as error:
            ended = Ended(job.run, "failed", _reason(error))
            with suppress(OSError):  # of a full disk, with the log on it; the reason is told
                traceback.print_exc()
        # The listener is told first: if the status cannot be written, it knows why.
        listener.tell(ended)
        with suppress(LeaseLost):
            lease.check()
            write_status(job.directory, ended.state, ended.reason)
        return ended
    finally:
        lease.release()
        lock.release()


def _train(job: Job, lock: FileLock, lease: Lease, listener: Listener, started: int) -> Ended:
    from experiments.records.environment import software
    from experiments.training.loop import RunStopped
    from experiments.training.steps import RunFailed

    def should_stop() -> bool:
        listener.tell(None, now=False)
        return bool(listener.stop)

    def progress(step: int, loss: float, tokens_per_second: float, unit: str, steps: int) -> None:
        listener.tell(Advanced(job.run, step, loss, tokens_per_second, unit), now=step == steps)

    def note(sentence: str) -> None:
        print(sentence, flush=True)
        lease.check()
        write_status(job.directory, "running", note=sentence)

    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _taken(lock, lease):  # the orphan of a killed run lets go of it within a step
            if should_stop():
                raise RunStopped("stopped before its first step")
            if time.monotonic() > deadline:
                told = f"another process has been training it in the same directory for {LOCK_SECONDS} s"
                return Ended(job.run, "running", told)
        remove_leftovers(job.directory)
        needed = read_job(job.directory)[2]
        write_that_it_is_trained(job.directory, software(needed.device))
        nproc = needed.nproc
        several = started > 1 or nproc > 1
        with companions(job, nproc) if started == 1 and several else nullcontext():
            train_job(job, several, progress=progress, should_stop=should_stop, note=note, check=lease.check)
        return Ended(job.run, "done")
    except RunStopped as error:
        return Ended(job.run, "queued", str(error))
    except (RunFailed, LeaseLost) as error:
        return Ended(job.run, "failed", str(error))


def _taken(lock: FileLock, lease: Lease) -> bool:
    """Whether the directory is this process's now; waits for it half a second."""
    with suppress(Timeout):
        if not lock.is_locked:
            lock.acquire(timeout=0.5)
        if lease.take():
            return True
        time.sleep(0.5)
    return False


def _choose_gpus(place: int, count: int) -> None:
    """One for each of a run's processes, other ones in every place; where there are too few, they are shared in turn.

    Before CUDA begins, which reads the variable.
    """
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [*map(str, range(torch.cuda.device_count()))] if named is None else named.split(",")
    if len(gpus) > 1:
        own = [gpus[(place * count + each) % len(gpus)] for each in range(min(count, len(gpus)))]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(own)


def _reason(error: Exception) -> str:
    """An exception on one line; its traceback is in the log."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]
