"""The processes that train one run together: where torchrun has started none, the first one starts the others."""

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec

from experiments.console import install_command
from experiments.objects import Job
from experiments.run.signals import at_the_end_of_input, stop_signals_are_blocked

SECONDS = 30
"""for the others to end, once the first is at its end"""
STARTED = "LINEAR_ROPE_PEER"
"""the variable that tells the others that the first process has started them"""


def check_can_share(batch_size: int, count: int) -> None:
    """Raises ValueError unless so many processes can share a batch evenly, and can be connected."""
    if batch_size % count:
        other = batch_size + -batch_size % count
        raise ValueError(
            f"batch_size is {batch_size}, which {count} processes cannot share evenly; give a multiple of it, "
            f"such as {other}, or another number of processes"
        )
    if count > 1 and find_spec("accelerate") is None:
        raise ValueError(
            f"{count} processes (of --nproc, or of torchrun) are to train one run, which needs accelerate; give "
            f"{install_command('distributed')}, or start one process"
        )


@contextmanager
def peers(job: Job, count: int, plugins: Sequence[str]) -> Iterator[None]:
    """Make this process the first of ``count`` and start the others, as torchrun would; they end with the context.

    Each is the run's own command, which is told its rank by torchrun's variables. What they print goes where this
    process's output goes.
    """
    if count == 1 or "WORLD_SIZE" in os.environ:
        yield
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), STARTED: "1"}
    places = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    command = [*job.command, *(f"--plugin={plugin}" for plugin in plugins)]
    started: list[subprocess.Popen[bytes]] = []
    before = dict(os.environ)
    try:
        for place in places[1:]:
            with stop_signals_are_blocked():  # a terminal sends its signals to all: these wait until it can heed them
                started.append(subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | place))
        os.environ.update(places[0])
        yield
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS)
    finally:
        for name in places[0]:
            os.environ.pop(name, None)
        os.environ.update(before)
        for process in started:
            process.kill()
            process.wait()


def end_with_the_first() -> None:
    """Let this process end with the first one, if that started it: it may be killed while this one waits."""
    if STARTED in os.environ:
        at_the_end_of_input(lambda: os._exit(1))
