"""The processes of a run that several train: those that torchrun has started, or with ``--nproc`` the first one."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec

from experiments.console import install_command
from experiments.objects import Job

SECONDS = 30
"""for the others to end, once the first is at its end"""


def started_processes() -> tuple[int, int]:
    """How many processes torchrun has started for this run, and which of them this is: (1, 0) without it."""
    return int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))


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
def peers(job: Job, count: int) -> Iterator[None]:
    """Make this process the first of ``count`` and start the others, as torchrun would; they end with the context.

    Each is the run's own command, which is told its rank by torchrun's variables. What they print goes where this
    process's output goes.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    places = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    started: list[subprocess.Popen[bytes]] = []
    before = {name: os.environ.get(name) for name in places[0]}
    try:
        for place in places[1:]:
            started.append(subprocess.Popen(job.command, stdin=subprocess.DEVNULL, env=os.environ | place))
        os.environ.update(places[0])
        yield
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        for process in started:
            process.kill()
            process.wait()
