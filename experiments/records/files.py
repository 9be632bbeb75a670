"""Reading and writing files so that nothing is lost, nothing hangs and what a message repeats is text.

A comparison writes inside its own directory only, wherever links in it lead.
"""

import errno
import io
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

LARGEST_RECORD = 2**30
"""bytes of a file that is read whole; the largest of a comparison, a long run's metrics, has some megabytes"""
LARGEST_CHECKPOINT = 2**40
"""bytes of one file of a checkpoint"""

_INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text with control characters, lone surrogates and changes of direction written as ``\x07`` or ``\u202e``.

    Line breaks and tabs stay.
    """
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def wrong_file(where: str, problem: str, remedy: str) -> ValueError:
    """A ValueError of one line: which file (and line), what is wrong with it, what to do."""
    problem = re.sub(r"\S{300,}", lambda word: f"{word[0][:100]}...", problem)  # a value may be endless
    return ValueError(visible(" ".join(f"{where} {problem}; {remedy}".split())))


def read_file(path: Path, remedy: str, largest: int = LARGEST_RECORD) -> bytes:
    """The content of a file. Raises ValueError if it is not a regular file (a pipe never ends), or too large."""
    try:
        # Without waiting for the other end, if it is a pipe.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise wrong_file(str(path), "is not a regular file", remedy)
            if status.st_size > largest:
                raise wrong_file(str(path), f"is larger than {largest:,} bytes", remedy)
            return file.read(status.st_size)  # files of the kernel say that they are empty, and may never end
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise wrong_file(str(path), f"cannot be read ({reason})", remedy) from None


def check_links(directory: Path) -> None:
    """Look at everything in a directory, at any depth, before it is written.

    Raises:
        ValueError: a link leads out of it, or something is neither a file nor a directory (a pipe never ends).
    """
    top = os.path.realpath(directory)
    for folder, folders, files in os.walk(directory):
        for path in (os.path.join(folder, name) for name in folders + files):
            if os.path.islink(path):
                target = os.path.realpath(path)
                if not Path(target).is_relative_to(top):
                    told = "remove the link, or move what it leads to into its place"
                    raise ValueError(f"{path} is a link to {target}, outside of {directory}; {told}")
            # Another process may be at work here, and what it removes is no longer there.
            elif os.path.lexists(path) and not (os.path.isdir(path) or os.path.isfile(path)):
                raise ValueError(f"{path} is neither a file nor a directory; remove it")


def open_to_append(path: Path) -> io.FileIO:
    """A file open for appending, made if there is none. Raises OSError, also if it is a link, a pipe or a device."""
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(errno.EINVAL, "it is a link or no file; remove it", os.fspath(path))
    return open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that at any moment, also after a power cut, either the old or the new content is there, whole.

    What UTF-8 cannot hold (a name of bytes that are not text) becomes a question mark.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    data = content.encode(errors="replace") if isinstance(content, str) else content
    try:
        temporary.unlink(missing_ok=True)  # be it a link
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        # On a full disk what was half written would take the room that the next record needs.
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sync_directory(path: Path) -> None:
    """Make the renames in a directory durable, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(directory: Path) -> None:
    """Remove what writers that were killed left half written in a directory; its lock must be held."""
    for leftover in directory.glob(".*.tmp"):
        if not leftover.is_dir():
            leftover.unlink()
