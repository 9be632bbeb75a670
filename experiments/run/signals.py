"""What SIGINT and SIGTERM do: the run stops where it can go on later, and says how."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """SIGINT or SIGTERM came; the runs that ran wrote a checkpoint first. The message is the signal's name."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


@contextmanager
def stop_signals_raise() -> Iterator[None]:
    """While the context lasts, SIGINT and SIGTERM raise Stopped wherever the main thread is."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    with _handled_by(stop):
        yield


@contextmanager
def stop_signals_are_collected() -> Iterator[list[int]]:
    """While the context lasts, SIGINT and SIGTERM are written down and do nothing else; those that waited come now."""
    received = list[int]()
    with _handled_by(lambda number, frame: received.append(number)):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        yield received


@contextmanager
def stop_signals_are_blocked() -> Iterator[None]:
    """What is started while the context lasts inherits that SIGINT, SIGTERM and SIGUSR2 have to wait.

    Slurm sends the last one to all processes of a job whose time ends (submitit asks for it), for its first to heed.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP_SIGNALS, signal.SIGUSR2})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def at_the_end_of_input(do: Callable[[], object]) -> None:
    """Do something when the standard input ends, on which nothing comes: who has its other end closed it or died."""
    threading.Thread(target=lambda: os.read(0, 1) or do(), daemon=True).start()


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
