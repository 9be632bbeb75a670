"""A comparison's directory: its description, who may write to it, and the notes it gathers."""

import contextlib
import errno
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from experiments import environment
from experiments.cli import RunCommand
from experiments.errors import why
from experiments.record import write_atomically

CONTINUED = "continued with another"
"""how the notes of add_changes begin"""
LONGEST_PATH_BELOW = f"{'x' * 100}/{'x' * 100}"
"""as long as any path of a comparison below its directory"""


def comparison_directory(command: RunCommand) -> Path:
    return command.out or Path("results/runs") / command.experiment


def check_directory(root: Path) -> None:
    """Refuse an --out that no comparison can be in. Makes nothing.

    Raises:
        ValueError: it cannot be made or written, or it holds something else, which a report would overwrite.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            (root / LONGEST_PATH_BELOW).stat()
        # Of a path that is not there yet, the system does not look at the rest.
        nearest = next((path for path in (root, *root.parents) if os.path.lexists(path)), root)
        for name in root.relative_to(nearest).parts:
            with contextlib.suppress(FileNotFoundError):
                (nearest / name).stat()
        if not nearest.is_dir():
            raise FileExistsError(errno.EEXIST, f"{nearest} is in the way")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        raise _cannot_be_written(root, error) from None
    try:
        names = [name for name in os.listdir(root) if not name.startswith(".")]
    except OSError:  # not there yet, or not readable; make_directory tells whether it can be written
        return
    if names and "comparison.json" not in names:
        raise ValueError(
            f"--out {root} holds {min(names)!r} and no comparison.json, so it is not a comparison's and nothing is "
            "written into it; give a directory that is new or empty"
        )


def new_comparison(command: RunCommand, command_line: str, device: torch.device) -> dict[str, Any]:
    """What every comparison.json says: what was run, with which code, where and when."""
    return {
        "name": Path(os.path.abspath(comparison_directory(command))).name,
        "experiment": command.experiment,
        "preset": command.preset,
        "command": command_line,
        "git": environment.git(),
        "versions": environment.versions(),
        "machine": environment.machine(device),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "notes": [],
    }


def check_same_experiment(root: Path, there: dict[str, Any], comparison: dict[str, Any]) -> None:
    """Raises ValueError if the comparison in ``root`` is one of another experiment."""
    if there["experiment"] != comparison["experiment"]:
        raise ValueError(
            f"--out {root} holds a comparison of the experiment {there['experiment']}, not {comparison['experiment']}; "
            "give another --out"
        )


def differing_settings(there: dict[str, Any], comparison: dict[str, Any]) -> list[str]:
    """For each setting that two comparisons do not share: its name and both values."""
    return [
        f"{name} ({there['config'].get(name)!r} there, {value!r} now)"
        for name, value in comparison["config"].items()
        if there["config"].get(name) != value
    ]


def add_changes(merged: dict[str, Any], comparison: dict[str, Any]) -> None:
    """Note what is no longer as it was when the comparison in ``merged`` was begun."""
    changed = [what for what in ("command", "git", "versions", "machine") if merged[what] != comparison[what]]
    add_notes(merged, [f"{CONTINUED} {what}: {comparison[what]}" for what in changed])


def add_notes(comparison: dict[str, Any], notes: list[str]) -> None:
    comparison["notes"] = [*comparison["notes"], *(note for note in notes if note not in comparison["notes"])]


@contextmanager
def only_one_run(root: Path) -> Iterator[None]:
    """Hold the directory's lock. The system lets go of it however this process ends.

    Raises:
        ValueError: another process holds it.
    """
    owner = root / ".owner"
    lock = FileLock(root / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = owner.read_text() if owner.exists() else "another process"
        raise ValueError(f"--out {root} is being written by {holder}; wait for it, or give another --out") from None
    try:
        write_atomically(owner, f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        lock.release()


def make_directory(root: Path) -> None:
    """Make the directory of a comparison, and those above it, unless it is there.

    Raises:
        ValueError: it cannot be made or written; then none of them was made.
    """
    missing = [path for path in (root, *root.parents) if not path.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise _cannot_be_written(root, error) from None


def _cannot_be_written(root: Path, error: OSError | ValueError) -> ValueError:
    return ValueError(f"--out {root} cannot be written ({why(error)}); give a directory that can be made and written")
