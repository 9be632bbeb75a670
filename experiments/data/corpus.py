"""Where the text comes from: finding, downloading, checking and splitting the bytes that the models learn.

Every data set ends as a ``Corpus``: three arrays of bytes and the words that must stand beside its figures.
``tasks/`` has one file per data set, made of the helpers here.
"""

import gzip
import hashlib
import io
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Protocol

import numpy as np
import numpy.typing as npt
import pooch
import psutil

from experiments.errors import why
from experiments.records.schema import DataRecord

Bytes = npt.NDArray[np.uint8]
Tokens = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]

DATA_DIR_VARIABLE = "LINEAR_ROPE_DATA"
CACHE_VARIABLE = "LINEAR_ROPE_CACHE"

NOT_SCORED = -100
"""stands for a target that does not count; what PyTorch's cross_entropy leaves out"""

LARGEST_TEXT = 2**32
"""bytes of a text, packed or not; at most half of the free memory besides, because all of it is kept there"""
SMALL_TEXT = 2**26
"""up to here a packed text may be as repetitive as it likes"""
LARGEST_RATIO = 100
"""of a larger text's size to its file's. DEFLATE reaches 1032 on zeros; on prose 2 to 4, on source and logs 5 to 30."""
LARGEST_ZIP_DIRECTORY = 2**20
"""bytes of a zip's table of contents, which zipfile reads at once; the one file that we look for takes a hundred"""
PIECE = 2**20
ARCHIVE_BEGINNINGS = (
    b"PK\x03\x04",
    b"\x1f\x8b\x08",
    b"\xfd7zXZ\x00",
    b"BZh9",
    b"7z\xbc\xaf\x27\x1c",
    b"\x28\xb5\x2f\xfd",
)
"""zip, gzip, xz, bzip2, 7z, zstd"""


class Sequences(Protocol):
    """A generator of sequences to be predicted in part, such as recall and copying; a token is a byte here too."""

    @property
    def length(self) -> int:
        """Inputs of a sequence; it has one token more, the last target."""

    def draw(self, generator: np.random.Generator, count: int) -> Bytes:
        """So many new sequences as a model is evaluated on, of shape (count, length + 1)."""

    def draw_training(self, generator: np.random.Generator, count: int) -> Bytes:
        """So many new sequences as a model is trained on, of the same shape; some may be easier."""

    def targets(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What is to be predicted at each input, NOT_SCORED where nothing is; (B, length) of tokens (B, length + 1)."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """The bytes of a data set, split for training, validation and test.

    Of generated ``sequences``, ``train`` is empty, because every training batch is drawn anew, and the other splits
    hold one sequence after another.
    """

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
    sequences: Sequences | None = None
    """what generates it; None for a text"""

    def describe(self) -> DataRecord:
        """What a record of a run keeps about its data. Sizes are in bytes."""
        splits = {split: len(getattr(self, split)) for split in ("train", "validation", "test")}
        return DataRecord(
            name=self.name,
            sha256=self.sha256,
            source=self.source,
            note=self.note,
            bytes=sum(splits.values()),
            splits=splits,
        )


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
    from experiments.data.registry import TASKS  # here, because the tasks are made of this module

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
    try:
        # With a name behind it, as the data sets have: a path can be too long.
        (data_dir / "imdb" / ("x" * 100)).stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{origin}: {data_dir} cannot be read ({why(error)}); give the directory that holds the data sets"
        ) from None
    if not data_dir.is_dir():
        raise ValueError(f"{origin}: {data_dir} is not a directory; give the directory that holds the data sets")
    if not os.access(data_dir, os.R_OK | os.X_OK):
        raise ValueError(f"{origin}: {data_dir} cannot be read; change its permissions or give another directory")
    return data_dir


def find_file(data_dir: Path | None, names: Sequence[str]) -> Path | None:
    """The first of ``names`` (relative to ``data_dir``) that is a file.

    Raises ValueError if that cannot be found out.
    """
    if data_dir is None:
        return None
    try:
        return next((data_dir / name for name in names if (data_dir / name).is_file()), None)
    except OSError as error:
        raise ValueError(
            f"{error.filename or data_dir} cannot be read ({why(error)}); change its permissions or remove it"
        ) from None


def check_regular_file(path: Path, origin: str) -> None:
    """Raises ValueError, which begins with ``origin``, unless ``path`` is a file: reading others may never end."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise ValueError(f"{origin}: there is no file {path}; give the path of a file with text") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{origin}: {path} cannot be read ({why(error)}); give the path of a file with text") from None
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise ValueError(f"{origin}: {path} is {kind}; give the path of one file with text")


def file_hash(path: Path, algorithm: str, origin: str) -> str:
    """The hash of a file in hexadecimal. Raises ValueError, which begins with ``origin``, if it cannot be read."""
    check_regular_file(path, origin)
    try:
        return str(pooch.file_hash(str(path), alg=algorithm))
    except OSError as error:
        raise ValueError(f"{origin}: {path} cannot be read ({why(error)}); replace or remove it") from None


def read_content(path: Path, limit: int | None = None, origin: str = "--data-file") -> bytes:
    """The first ``limit`` bytes of a file (None: all); of a .gz file its content, of a .zip file its only member's.

    What is packed is unpacked piece by piece and counted, so a file that would fill the memory is refused before it
    does; nothing is written to disk.

    Raises ValueError, which begins with ``origin``, if it is not a regular file, damaged, encrypted, too large (see
    ``LARGEST_TEXT``), packed more tightly than any text (``LARGEST_RATIO``) or another archive inside.
    """
    check_regular_file(path, origin)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            largest = min(LARGEST_TEXT, psutil.virtual_memory().available // 2)
            suffix = path.suffix.lower()
            if size == 0:
                return b""  # a file of the kernel's may say so, and never end
            if suffix not in (".gz", ".zip"):
                _check_size(size if limit is None else min(size, limit), largest)
                return file.read(-1 if limit is None else limit)
            _check_size(size, largest)
            budget = _Budget(largest, limit)
            if suffix == ".gz":
                with gzip.GzipFile(fileobj=file) as unpacked:
                    content = budget.read_all(unpacked, file)  # type: ignore[arg-type]
            else:
                content = _read_zip(path, budget)
    except _RefusedError as error:
        raise ValueError(f"{origin}: {path} {error}") from None
    except MemoryError:
        raise ValueError(f"{origin}: {path} does not fit into the memory; give a smaller file") from None
    # zipfile raises RuntimeError for an encrypted member, its subclass NotImplementedError for an unknown method, and
    # ValueError (UnicodeDecodeError among them) for tables of contents that make no sense.
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError, ValueError) as error:
        raise ValueError(f"{origin}: {path} cannot be read ({why(error)}); repair it or give another file") from None
    if content.startswith(ARCHIVE_BEGINNINGS):
        raise ValueError(f"{origin}: {path} holds another archive; unpack it and give the file with text")
    return content


class _RefusedError(Exception):
    """What is wrong with a file that could be read: the end of a sentence."""


def _check_size(size: int, largest: int) -> None:
    if size > largest:
        raise _RefusedError(
            f"has more than {largest:,} bytes, which is the most that is read ({LARGEST_TEXT:,}, or half of the free "
            "memory where that is less); give a part of it"
        )


@dataclass(frozen=True)
class _Budget:
    """How much of a packed file is unpacked."""

    largest: int
    limit: int | None

    def read_all(self, unpacked: IO[bytes], packed: IO[bytes]) -> bytes:
        """The content of ``unpacked``, which reads from ``packed``; what headers say about sizes does not count.

        Raises _RefusedError as soon as it is known to be too much.
        """
        pieces: list[bytes] = []
        size, start = 0, packed.tell()
        while piece := unpacked.read(PIECE if self.limit is None else min(PIECE, self.limit - size)):
            pieces.append(piece)
            size += len(piece)
            if size > SMALL_TEXT and size > LARGEST_RATIO * (packed.tell() - start):
                raise _RefusedError(
                    f"unpacks to {LARGEST_RATIO} times its size and more, as no text of more than {SMALL_TEXT:,} bytes "
                    "does; if it is text all the same, unpack it and give the unpacked file"
                )
            _check_size(size, self.largest)
        return b"".join(pieces)


class _ZipFile(io.FileIO):
    """A file for zipfile, which reads a table of contents whole, however long it claims to be."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > LARGEST_ZIP_DIRECTORY:
            raise zipfile.BadZipFile("its table of contents is too long; it is to hold one file")
        return super().read(size) or b""


def _read_zip(path: Path, budget: _Budget) -> bytes:
    with _ZipFile(path) as file, zipfile.ZipFile(file) as archive:
        # Not is_dir(), which fails where a name is empty.
        members = [member for member in archive.infolist() if not member.filename.endswith("/")]
        for member in archive.infolist():
            if leaves_directory(member.orig_filename):
                raise _RefusedError(
                    f"holds {member.orig_filename[:100]!r}, a name that leads out of a directory; give another file"
                )
        if len(members) != 1:
            raise _RefusedError(f"holds {len(members)} files; give a zip of exactly one file")
        (only,) = members
        if stat.S_ISLNK(only.external_attr >> 16):
            raise _RefusedError("holds a link and not a file; give a zip of the file itself")
        if only.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # The others unpack without a bound on what one call returns.
            raise _RefusedError("is packed with a method other than deflate; unpack it and give the unpacked file")
        with archive.open(only) as member_file:
            return budget.read_all(member_file, file)


def leaves_directory(name: str) -> bool:
    """Whether a member of an archive, unpacked under this name, could land outside of the directory it is put in."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    return posix.is_absolute() or bool(windows.drive or windows.root) or ".." in (*posix.parts, *windows.parts)


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


def cache_refused(error: OSError | ValueError) -> ValueError:
    """The error to raise when the cache directory cannot be written."""
    return ValueError(
        f"the cache directory {cache_directory()} cannot be written ({why(error)}); "
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
        """The file if it was downloaded before (not checked here), else None.

        Raises ValueError if the cache directory cannot be looked into, or holds something else under this name.
        """
        path = cache_directory() / self.file_name
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise cache_refused(error) from None
        if not stat.S_ISREG(mode):
            raise ValueError(f"{CACHE_VARIABLE}: {path} is not a regular file; remove it")
        return path

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
