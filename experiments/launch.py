"""Running the cells of a comparison: each in a process of its own, several at a time.

A cell's process sends its progress through a pipe, writes its files, and stops by itself, after a checkpoint, when it
is told to (SIGTERM) or when nobody listens any more. Whatever ends it, its status.json says so.
"""

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from experiments.config import Config
from experiments.record import cell_directory, cell_status, write_json

LOCK_SECONDS = 60


@dataclass(frozen=True)
class Cell:
    """A variant's name and a seed."""

    variant: str
    seed: int

    def __str__(self) -> str:
        return f"{self.variant} seed {self.seed}"


@dataclass(frozen=True)
class Job:
    """What a cell's process needs to know; all of it can be sent to another process."""

    root: Path
    config: Config
    data_dir: Path | None
    data_file: Path | None
    data_sha256: str
    device: str


class Display(Protocol):
    """Who is told what happens; see progress.py."""

    def started(self, cell: Cell) -> None: ...
    def advanced(self, cell: Cell, step: int, loss: float, tokens_per_second: float) -> None: ...
    def ended(self, cell: Cell, state: str, reason: str | None) -> None: ...


class Stopped(Exception):
    """The comparison was stopped by a signal; every running cell wrote a checkpoint first."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


@dataclass
class _Running:
    process: Any
    progress: Connection
    open: bool = field(default=True)


def run_cells(job: Job, cells: list[Cell], workers: int, display: Display) -> dict[Cell, str | None]:
    """Run every cell that is not done; returns the failed ones' reasons by cell (an empty dict if all is well).

    Raises:
        Stopped: SIGINT or SIGTERM came.
    """
    # A fork server imports PyTorch once; the processes forked from it start in milliseconds.
    context: Any = multiprocessing.get_context("forkserver" if sys.platform.startswith("linux") else "spawn")
    if hasattr(context, "set_forkserver_preload"):
        context.set_forkserver_preload(["experiments.train", "experiments.tasks"])
    for cell in cells:
        _write_config(job, cell)
    queue = [cell for cell in cells if _state(job, cell) != "done"]
    for cell in queue:
        _write_status(job, cell, "queued")
    running: dict[Cell, _Running] = {}
    failures: dict[Cell, str | None] = {}
    with _stop_signals() as stop:
        while queue or running:
            if stop:
                _stop_all(running, stop)
                raise Stopped(stop[0])
            while queue and len(running) < workers:
                cell = queue.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_run_cell, args=(job, cell, sender), name=str(cell))
                process.start()
                sender.close()
                running[cell] = _Running(process, receiver)
                display.started(cell)
            waiting: list[Any] = [entry.process.sentinel for entry in running.values()]
            wait(waiting + [entry.progress for entry in running.values() if entry.open], timeout=0.5)
            for cell, entry in list(running.items()):
                ended = not entry.process.is_alive()
                _forward_progress(cell, entry, display)
                if ended:
                    del running[cell]
                    state, reason = _final_status(job, cell, entry.process.exitcode)
                    if state != "done":
                        failures[cell] = reason
                    display.ended(cell, state, reason)
    return failures


def _forward_progress(cell: Cell, entry: _Running, display: Display) -> None:
    latest = None
    try:
        while entry.open and entry.progress.poll():
            latest = entry.progress.recv()
    except EOFError:
        entry.open = False
    if latest is not None:
        display.advanced(cell, *latest)


def _final_status(job: Job, cell: Cell, exitcode: int | None) -> tuple[str, str | None]:
    status = cell_status(job.root, cell.variant, cell.seed)
    if status["state"] == "running" or (status["state"] == "queued" and exitcode):
        # The process ended without a word: killed, out of memory, or its files could not be written.
        cause = f"signal {signal.Signals(-exitcode).name}" if exitcode and exitcode < 0 else f"exit status {exitcode}"
        _write_status(job, cell, "failed", f"its process ended with {cause}; see {_log_path(job, cell)}")
        status = cell_status(job.root, cell.variant, cell.seed)
    return status["state"], status["reason"]


def _stop_all(running: dict[Cell, _Running], received: list[int]) -> None:
    """Let every cell stop after a checkpoint; a second signal does not wait for that."""
    for entry in running.values():
        entry.process.terminate()
    while any(entry.process.is_alive() for entry in running.values()):
        if len(received) > 1:
            for entry in running.values():
                entry.process.kill()
        wait([entry.process.sentinel for entry in running.values() if entry.process.is_alive()], timeout=0.2)


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """A list that SIGINT and SIGTERM add their number to, while the context lasts."""
    received: list[int] = []
    previous = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _run_cell(job: Job, cell: Cell, sender: Connection) -> None:
    """The body of a cell's process."""
    stop: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    with open(_log_path(job, cell), "a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

    import torch

    from experiments.data import load_corpus
    from experiments.tasks.language_model import ByteLanguageModel
    from experiments.train import CellFailed, CellStopped, train_cell
    from experiments.variants import VARIANTS

    last_sent = 0.0

    def progress(step: int, loss: float, tokens_per_second: float) -> None:
        nonlocal last_sent
        if time.monotonic() - last_sent < 0.2 and step != job.config.steps:
            return
        last_sent = time.monotonic()
        try:
            sender.send((step, loss, tokens_per_second))
        except OSError:
            stop.append(signal.SIGTERM)

    directory = cell_directory(job.root, cell.variant, cell.seed)
    try:
        # An orphan of a killed run lets go within a step.
        lock = FileLock(directory / ".lock")
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        raise SystemExit(f"another process is training {cell} in {job.root}") from None
    _write_status(job, cell, "running")
    state, reason, notes = "done", None, []
    try:
        corpus = load_corpus(job.config.data, job.data_dir, job.data_file)
        if corpus.describe()["sha256"] != job.data_sha256:
            raise CellFailed("the data set changed while the comparison ran")
        task = ByteLanguageModel(corpus, job.config.context, job.config.batch_size)
        notes = train_cell(
            directory,
            VARIANTS[cell.variant],
            cell.seed,
            job.config,
            task,
            torch.device(job.device),
            progress=progress,
            should_stop=lambda: bool(stop),
        )
    except CellStopped as error:
        state, reason = "queued", str(error)
    except CellFailed as error:
        state, reason = "failed", str(error)
    except Exception as error:
        traceback.print_exc()
        state, reason = "failed", f"{type(error).__name__}: {error}"
    _write_status(job, cell, state, reason, notes)


def _state(job: Job, cell: Cell) -> str:
    return str(cell_status(job.root, cell.variant, cell.seed)["state"])


def _write_config(job: Job, cell: Cell) -> None:
    directory = cell_directory(job.root, cell.variant, cell.seed)
    directory.mkdir(parents=True, exist_ok=True)
    description = {"variant": cell.variant, "seed": cell.seed, "data_sha256": job.data_sha256}
    write_json(directory / "config.json", description | {"config": asdict(job.config)})


def _write_status(job: Job, cell: Cell, state: str, reason: str | None = None, notes: list[str] | None = None) -> None:
    directory = cell_directory(job.root, cell.variant, cell.seed)
    write_json(directory / "status.json", {"state": state, "reason": reason, "notes": notes or [], "time": time.time()})


def _log_path(job: Job, cell: Cell) -> Path:
    return cell_directory(job.root, cell.variant, cell.seed) / "log.txt"
