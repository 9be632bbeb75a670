"""Who may write: one command at a time in a comparison's directory, and one process at a time in a run's."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, SoftFileLease, Timeout
from rich.console import Console

from experiments.errors import why
from experiments.records.files import check_links, read_file, write_atomically

LEASE = ".lease"
RENEWED = 5.0
"""seconds between two renewals of a lease"""
STALE = 60.0
"""seconds without one after which another machine's lease is taken over"""


class LeaseLost(Exception):
    """Another process has taken a run's directory over."""


@contextmanager
def only_one_run(root: Path, console: Console) -> Iterator[None]:
    """Hold the lock of a comparison's directory. The system lets go of it however this process ends.

    Raises:
        ValueError: another process holds it, a link leads out of the directory, or it cannot be written.
    """
    holder = root / ".holder"
    with _locked(root):
        if holder.exists():
            console.print(f"{_told(holder)} was writing here and did not end by itself; this run goes on from it")
        try:
            write_atomically(holder, f"process {os.getpid()} on {socket.gethostname()}")
        except OSError as error:
            told = f"--out {root} cannot be written ({why(error)}); make room, or give another --out"
            raise ValueError(told) from None
        try:
            yield
        finally:
            with suppress(OSError):
                holder.unlink()


def ended_by_itself(root: Path) -> bool:
    """Whether the last command that wrote there did."""
    return not (root / ".holder").exists()


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
        told = f"--out {root} is being written by {_told(root / '.holder')}; wait, or give another --out"
        raise ValueError(told) from None
    return lock


def _told(holder: Path) -> str:
    try:
        return read_file(holder, "remove it").decode(errors="replace")
    except ValueError:  # it has not said so yet
        return "another process"


def run_lease(directory: Path) -> SoftFileLease:
    """The lease on a run's directory, which holds also where machines share no locks.

    One whose process is known to have ended is taken over at once, another machine's when it was not renewed for a
    minute by the clock of who waits for it. A process that was suspended, or cut off from the files, finds it lost when
    it goes on (``check_lease``), and must not write.
    """
    marker = directory / LEASE
    if _is_empty(marker):  # what a process leaves that is killed before it has written who it is
        time.sleep(1)
        if _is_empty(marker):
            marker.unlink(missing_ok=True)
    return SoftFileLease(directory / LEASE, lease_duration=STALE, heartbeat_interval=RENEWED)


def _is_empty(marker: Path) -> bool:
    return marker.exists() and not marker.stat().st_size


def check_lease(lease: SoftFileLease) -> None:
    """Raises LeaseLost if this process does not have the lease any more."""
    if not lease.is_lock_held_by_us:
        now = holder_of(Path(lease.lock_file).parent) or "the lease is gone"
        raise LeaseLost(f"another process has taken its directory over: {now}")


def holder_of(directory: Path) -> str | None:
    """Who has the lease of a run's directory, or had it to its end; None: nobody."""
    owner = SoftFileLease(directory / LEASE).owner
    return owner and f"process {owner.pid} on {owner.hostname.partition('?')[0]}"
