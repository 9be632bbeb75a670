"""A comparison writes inside its own directory only, wherever links in it lead."""

import errno
import os
import stat
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO


def check_links(directory: Path) -> None:
    """Look at everything in a directory, at any depth, before it is written.

    Raises:
        ValueError: a link leads out of it, or something is neither a file nor a directory (a pipe never ends).
    """
    places = [os.fspath(directory)]
    while places:
        # Another process may be at work here, and what it removes is no longer there.
        with suppress(FileNotFoundError), os.scandir(places.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    check_link(entry, directory)
                elif entry.is_dir(follow_symlinks=False):
                    places.append(entry.path)
                elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                    raise ValueError(f"{entry.path} is neither a file nor a directory; remove it")


def check_link(link: os.PathLike[str], directory: Path) -> None:
    """Raises ValueError if a link leads out of a directory."""
    target = os.path.realpath(link)
    if not Path(target).is_relative_to(os.path.realpath(directory)):
        raise ValueError(
            f"{os.fspath(link)} is a link to {target}, outside of {directory}; remove the link, or move what it "
            "leads to into its place"
        )


def create(path: Path) -> BinaryIO:
    """A new file open for writing, in the place of what is there, be it a link. Raises OSError."""
    path.unlink(missing_ok=True)
    return open(path, "xb")


def open_to_append(path: Path) -> FileIO:
    """A file open for appending, made if there is none. Raises OSError, also if it is a link, a pipe or a device."""
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(errno.EINVAL, "it is a link or no file; remove it", os.fspath(path))
    no_link = getattr(os, "O_NOFOLLOW", 0)
    return open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags | no_link, 0o666))
