"""Where the text comes from: finding, downloading, checking and splitting the bytes that the models learn.

Every data set ends as a ``Corpus``: three arrays of bytes and the words that must stand beside its figures.
``tasks/`` has one file per data set, made of the helpers here.
"""

import gzip
import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pooch

Bytes = npt.NDArray[np.uint8]

DATA_DIR_VARIABLE = "LINEAR_ROPE_DATA"
CACHE_VARIABLE = "LINEAR_ROPE_CACHE"


@dataclass(frozen=True, eq=False)
class Corpus:
    """The bytes of a data set, split for training, validation and test."""

    name: str
    train: Bytes
    validation: Bytes
    test: Bytes
    sha256: str
    """of the whole content: train, validation and test bytes in that order"""
    source: str
    """where the content was found, in words"""
    note: str
    """one sentence that must stand beside every figure of this data set"""

    def describe(self) -> dict[str, Any]:
        """What a record of a run keeps about its data, ready for JSON. Sizes are in bytes."""
        splits = {split: len(getattr(self, split)) for split in ("train", "validation", "test")}
        return {
            "name": self.name,
            "sha256": self.sha256,
            "source": self.source,
            "note": self.note,
            "bytes": sum(splits.values()),
            "splits": splits,
        }


@dataclass(frozen=True)
class Task:
    """A data set that ``--data`` can name."""

    name: str
    description: str
    load: Callable[[Path | None, Path | None], Corpus]
    """(data directory, --data-file) -> the corpus; raises ValueError when it cannot be had"""
    find: Callable[[Path | None], str | None]
    """data directory -> where the data already is on this machine, in words; None when it is not there"""
    when_missing: str
    """what would bring it here"""
    url: str | None = None
    """official source"""
    needs_file: bool = False
    """whether it is read from --data-file"""


def load_corpus(name: str, data_dir: Path | None = None, data_file: Path | None = None) -> Corpus:
    """The data set called ``name``.

    ``data_dir`` is a directory to look in before downloading; None stands for the environment variable
    LINEAR_ROPE_DATA, if it is set. ``data_file`` is the file of ``--data text``.

    Raises ValueError, in one line that names the fix, when the arguments do not fit together or the data cannot be
    found, read, reached or recognised.
    """
    from experiments.tasks import TASKS  # here, because the tasks are made of this module

    if name not in TASKS:
        raise ValueError(f"--data: there is no data set {name!r}; choose from {', '.join(TASKS)}")
    task = TASKS[name]
    if task.needs_file and data_file is None:
        raise ValueError(f"--data {name} reads a file of yours; name it with --data-file FILE")
    if data_file is not None and not task.needs_file:
        raise ValueError(f"--data-file goes with --data text, not with --data {name}; change one of them")
    return task.load(resolve_data_dir(data_dir), data_file)


def resolve_data_dir(data_dir: Path | None) -> Path | None:
    """``data_dir``, or else the directory that LINEAR_ROPE_DATA names, or else None.

    Raises ValueError if it is not a directory that can be read.
    """
    origin = "--data-dir"
    if data_dir is None:
        if not os.environ.get(DATA_DIR_VARIABLE):
            return None
        origin, data_dir = DATA_DIR_VARIABLE, Path(os.environ[DATA_DIR_VARIABLE])
    if not data_dir.is_dir():
        raise ValueError(f"{origin}: {data_dir} is not a directory; give the directory that holds the data sets")
    if not os.access(data_dir, os.R_OK | os.X_OK):
        raise ValueError(f"{origin}: {data_dir} cannot be read; change its permissions or give another directory")
    return data_dir


def find_file(data_dir: Path | None, names: Sequence[str]) -> Path | None:
    """The first of ``names`` (relative to ``data_dir``) that is a file."""
    if data_dir is None:
        return None
    return next((data_dir / name for name in names if (data_dir / name).is_file()), None)


def read_content(path: Path, limit: int | None = None) -> bytes:
    """The first ``limit`` bytes of a file (None: all); of a .gz file its content, of a .zip file its only member's.

    Raises ValueError if it cannot be read.
    """
    amount = -1 if limit is None else limit
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read(amount)
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                members = [member for member in archive.infolist() if not member.is_dir()]
                if len(members) != 1:
                    raise ValueError(f"{path} holds {len(members)} files; give a zip of exactly one file")
                with archive.open(members[0]) as member:
                    return member.read(amount)
        with path.open("rb") as file:
            return file.read(amount)
    # zipfile raises RuntimeError for an encrypted member, and its subclass NotImplementedError for an unknown method.
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path} cannot be read ({reason}); repair it or give another file") from None


def split_90_5_5(content: Bytes) -> tuple[Bytes, Bytes, Bytes]:
    """The first 90 %, the next 5 % and the last 5 % of ``content``, rounded down; the last takes the remainder."""
    train_end, validation_end = len(content) * 90 // 100, len(content) * 95 // 100
    return content[:train_end], content[train_end:validation_end], content[validation_end:]


def build_corpus(
    name: str, content: bytes | Bytes, source: str, note: str, expected_sha256: str | None = None
) -> Corpus:
    """``content`` as a corpus, split 90/5/5.

    Raises ValueError if it is empty, or if its sha256 is not the one expected.
    """
    array = np.frombuffer(content, dtype=np.uint8) if isinstance(content, bytes) else content
    if not len(array):
        raise ValueError(f"--data {name}: {source} is empty; give a file with text in it")
    sha256 = hashlib.sha256(array.data).hexdigest()
    if expected_sha256 not in (None, sha256):
        raise ValueError(
            f"--data {name}: {source} is damaged or another file (sha256 {sha256}, expected {expected_sha256}); "
            "replace or remove it"
        )
    return Corpus(name, *split_90_5_5(array), sha256=sha256, source=source, note=note)


def cache_directory() -> Path:
    """Where downloads are kept: LINEAR_ROPE_CACHE, or the place the operating system has for caches."""
    return Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("linear-rope"))


def cache_refused(error: OSError) -> ValueError:
    """The error to raise when the cache directory cannot be written."""
    return ValueError(
        f"the cache directory {cache_directory()} cannot be written ({error.strerror or type(error).__name__}); "
        f"set {CACHE_VARIABLE} to a directory that can"
    )


@dataclass(frozen=True)
class Download:
    """A file that its publisher offers, with the hash by which we know it."""

    url: str
    known_hash: str
    """``sha256:<hex>`` or ``md5:<hex>``"""
    file_name: str
    """its name in the cache directory"""

    def cached(self) -> Path | None:
        """The file if it was downloaded before (not checked here), else None."""
        return find_file(cache_directory(), [self.file_name])

    def fetch(self) -> Path:
        """The file, downloaded unless the cache has it; checked against its hash either way.

        Raises ValueError if it cannot be reached or kept, or is not the known file (then it is not kept).
        """
        import requests  # as late as pooch does, because it takes long to import

        pooch.get_logger().setLevel("WARNING")  # stderr is for errors; the line below says the same on stdout
        if self.cached() is None:
            print(f"downloading {self.url} to {cache_directory()}", flush=True)
        instead = f"download it elsewhere and place it as {self.file_name} in --data-dir, or use --data stdlib"
        try:
            path = pooch.retrieve(
                self.url,
                known_hash=self.known_hash,
                fname=self.file_name,
                path=cache_directory(),
                downloader=pooch.HTTPDownloader(chunk_size=2**20),
            )
        except requests.RequestException as error:
            status = "" if error.response is None else f" {error.response.status_code}"
            raise ValueError(f"{self.url} could not be reached ({type(error).__name__}{status}); {instead}") from None
        except OSError as error:
            raise cache_refused(error) from None
        except ValueError:
            raise ValueError(
                f"what {self.url} sent does not have the known hash ({self.known_hash}) and was not kept; "
                f"try again, or {instead}"
            ) from None
        return Path(path)
