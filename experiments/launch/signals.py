"""What SIGINT and SIGTERM do: the run stops where it can go on later, and says how."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
END_OF_TIME = {signal.SIGUSR2} if hasattr(signal, "SIGUSR2") else set()
"""what Slurm sends to all processes of a job whose time ends (submitit asks for it); only the job's first heeds it"""
SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)"""


class Stopped(BaseException):
    """SIGINT or SIGTERM came; the runs that ran wrote a checkpoint first. The message is the signal's name."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class Received(NamedTuple):
    """The stop signals that came; ``ready`` is a file descriptor that can be read from the first one on."""

    numbers: list[int]
    ready: int


@contextmanager
def stop_signals_raise() -> Iterator[None]:
    """While the context lasts, SIGINT and SIGTERM raise Stopped wherever the main thread is."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    with _handled_by(stop):
        yield


@contextmanager
def stop_signals_are_collected() -> Iterator[Received]:
    """While the context lasts, SIGINT and SIGTERM are written down and do nothing else."""
    ready, wake = os.pipe()
    received = Received([], ready)

    def write_down(number: int, frame: FrameType | None) -> None:
        received.numbers.append(number)
        os.write(wake, b".")

    try:
        with _handled_by(write_down):
            yield received
    finally:
        os.close(ready)
        os.close(wake)


@contextmanager
def stop_signals_are_blocked() -> Iterator[None]:
    """What is started while the context lasts inherits that SIGINT, SIGTERM and END_OF_TIME have to wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP_SIGNALS, *END_OF_TIME})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop_when_orphaned(stop: list[int]) -> None:
    """Write SIGTERM down in ``stop`` when the process that multiprocessing started this one for has ended (Linux).

    Its parent may be a fork server, which ends with that process; one that was killed alone stops nothing.
    """
    starter = multiprocessing.parent_process()
    if starter is None or not sys.platform.startswith("linux"):
        return

    def look(number: int, frame: FrameType | None) -> None:
        if not starter.is_alive():
            stop.append(signal.SIGTERM)

    signal.signal(signal.SIGHUP, look)
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGHUP, 0, 0, 0)
    look(signal.SIGHUP, None)  # it may have ended before


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    # Python lets only the main thread handle signals.
    numbers = STOP_SIGNALS if threading.current_thread() is threading.main_thread() else ()
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
