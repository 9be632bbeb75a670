"""What SIGINT and SIGTERM do: the run stops where it can go on later, and says how."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """SIGINT or SIGTERM came; the cells that ran wrote a checkpoint first. The message is the signal's name."""

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
    """A list that SIGINT and SIGTERM add their number to, and do nothing else, while the context lasts."""
    received: list[int] = []
    with _handled_by(lambda number, frame: received.append(number)):
        yield received


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets only the main thread handle signals
        return
    previous = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
