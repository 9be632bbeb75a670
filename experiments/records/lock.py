"""The lock of a comparison's directory: one run at a time, and a second one is told who holds it."""

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from filelock import FileLock, Timeout
from rich.console import Console

from experiments.errors import why
from experiments.records.files import check_links, read_file, write_atomically

ENDED = " (ended)"
"""what is added to the name of a lock's holder when it lets go by itself"""
OWNER_SECONDS = 2
"""how long the holder of a lock may take to write down who it is"""


@contextmanager
def only_one_run(root: Path, console: Console) -> Iterator[None]:
    """Hold the directory's lock. The system lets go of it however this process ends.

    Raises:
        ValueError: another process holds it, a link leads out of the directory, or it cannot be written.
    """
    lock, owner = _locked(root), root / ".owner"
    me = f"process {os.getpid()} on {socket.gethostname()}"
    try:
        if owner.exists() and not (before := _read_owner(owner)).endswith(ENDED):
            console.print(f"{before} was writing here and did not end by itself; this run goes on from it")
        try:
            write_atomically(owner, me)
        except OSError as error:
            told = f"--out {root} cannot be written ({why(error)}); make room, or give another --out"
            raise ValueError(told) from None
        yield
    finally:
        with suppress(OSError):
            write_atomically(owner, me + ENDED)
        lock.release()


def check_free(root: Path) -> None:
    """Raises ValueError where only_one_run does. Writes nothing."""
    if (root / ".lock").exists():
        _locked(root).release()
    else:
        check_links(root)


def _locked(root: Path) -> FileLock:
    check_links(root)
    lock = FileLock(root / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = _holder(root / ".owner")
        raise ValueError(f"--out {root} is being written by {holder}; wait, or give another --out") from None
    return lock


def _holder(owner: Path) -> str:
    """Who holds the lock: a moment passes between a process's taking it and its saying so."""
    deadline = time.monotonic() + OWNER_SECONDS
    while True:
        holder = _read_owner(owner)
        number = re.search(r"process ([0-9]+) on (.*)", holder)
        is_dead = number and number[2] == socket.gethostname() and not psutil.pid_exists(int(number[1]))
        if (number and not is_dead and not holder.endswith(ENDED)) or time.monotonic() > deadline:
            return holder.removesuffix(ENDED)
        time.sleep(0.05)


def _read_owner(owner: Path) -> str:
    try:
        return read_file(owner, "remove it").decode(errors="replace")
    except ValueError:
        return "another process"
