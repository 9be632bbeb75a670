"""The lease on a run's directory: at most one process writes it, also where the machines share no locks.

A file lock ends with its process, but not every file system tells other machines of it. So the process that trains
renews a file every few seconds, and another one takes over when that has not changed for a minute by its own clock:
the clocks of machines need not agree. A process that was suspended, or cut off from the files, finds its lease lost
when it goes on, and must not write.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

LEASE = ".lease"
RENEWED = 5.0
"""seconds between two renewals"""
STALE = 60.0
"""seconds without one after which another machine's lease is taken over"""


class LeaseLost(Exception):
    """Another process has taken the directory over."""


@cache
def machine() -> str:
    """This machine since it was started, as one that shares no locks with others."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else uuid.getnode()}"


class Lease:
    """A directory's lease, in its file ``.lease``; the directory's file lock must be held."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LEASE
        self._id, self._machine = uuid.uuid4().hex, machine()
        self._seen: tuple[bytes | None, float] = None, time.monotonic()
        self._lock, self._released = threading.Lock(), threading.Event()

    def take(self) -> bool:
        """Take the lease if nobody has it; ask again until a minute has passed. Raises OSError."""
        content = self._read()
        if content is not None and not self._may_be_taken_over(content):
            return False
        if content is not None:
            # Renamed and not removed: of two that do this at once, the later one ends the other's new lease too.
            with suppress(FileNotFoundError):
                taken = self._path.with_name(f".lease.{self._id}.tmp")
                os.rename(self._path, taken)
                taken.unlink()
        try:
            with open(self._path, "xb") as file:
                file.write(self._content(0))
        except FileExistsError:
            return False
        except OSError:
            self._path.unlink(missing_ok=True)  # of a full disk
            raise
        threading.Thread(target=self._renew, daemon=True).start()
        return True

    def check(self) -> None:
        """Raises LeaseLost if another process has the lease now, or OSError if that cannot be found out."""
        with self._lock:
            if self._is_mine(content := self._read()):
                return
        raise LeaseLost(f"another process has taken its directory over: {_described(content)}")

    def release(self) -> None:
        """Let go of the lease, if it was taken and not lost."""
        self._released.set()
        with self._lock, suppress(OSError):
            if self._is_mine(self._read()):
                self._path.unlink()

    def _may_be_taken_over(self, content: bytes) -> bool:
        if content != self._seen[0]:
            self._seen = content, time.monotonic()
        # Of this machine the lock tells, which its owner no longer holds.
        return _field(content, "machine") == self._machine or time.monotonic() - self._seen[1] > STALE

    def _renew(self) -> None:
        number = 0
        while not self._released.wait(RENEWED):
            number += 1
            # What fails for a moment may work the next time; if not, another process takes over, and check tells.
            with self._lock, suppress(OSError):
                if not self._is_mine(self._read()):
                    return
                # Into the same file, which other machines have open or remember.
                with open(self._path, "r+b") as file:
                    file.write(self._content(number))

    def _is_mine(self, content: bytes | None) -> bool:
        return content is not None and _field(content, "id") == self._id

    def _content(self, number: int) -> bytes:
        owner = {"id": self._id, "process": os.getpid(), "machine": self._machine, "renewed": f"{number:08d}"}
        return json.dumps(owner).encode() + b"\n"

    def _read(self) -> bytes | None:
        return _read(self._path)


def holders(directories: Iterable[Path]) -> dict[Path, str]:
    """Who renews the lease of which of some directories; waits for longer than that takes if there are leases."""
    before = {directory: content for directory in directories if (content := _read(directory / LEASE)) is not None}
    if before:
        time.sleep(2 * RENEWED)
    found = {directory: _read(directory / LEASE) for directory in before}
    return {
        directory: _described(content)
        for directory, content in found.items()
        if content is not None and content != before[directory]
    }


def _read(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def _field(content: bytes, name: str) -> object:
    with suppress(ValueError):
        fields = json.loads(content)
        if isinstance(fields, dict):
            return fields.get(name)
    return None


def _described(content: bytes | None) -> str:
    if content is None:
        return "the lease is gone"
    return f"process {_field(content, 'process')} on {str(_field(content, 'machine')).partition(' ')[0]}"
