"""The type of a data set; and finding, reading, unpacking and downloading the files that hold one.

Whatever a user gives is read from a regular file, into memory alone. What takes long to import is imported where it is
used: `list` needs this module.
"""

import gzip
import hashlib
import io
import lzma
import os
import re
import stat
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import psutil
from platformdirs import user_cache_dir

from experiments.errors import why
from experiments.records.files import write_atomically

if TYPE_CHECKING:
    import numpy.typing as npt

DATA_DIR_VARIABLE = "LINEAR_ROPE_DATA"
CACHE_VARIABLE = "LINEAR_ROPE_CACHE"

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


@dataclass(frozen=True)
class DataSet:
    """A data set that ``--data`` can name. One that downloads gives ``find`` and ``url`` too."""

    name: str
    description: str
    load: Callable[[Path | None, Path | None], Any]
    """(data directory, --data-file) -> the text or the examples; raises ValueError when they cannot be had"""
    find: Callable[[Path | None], Path | str | None] = lambda data_dir: "made by its own code when it is used"
    """data directory -> where the data already is on this machine, as a path or in words; None when it is not there"""
    when_missing: str = "it is always here"
    """what would bring it here"""
    url: str | None = None
    """where it is downloaded from when ``find`` does not find it"""
    needs_file: bool = False
    """whether it is read from --data-file"""
    objective: Callable[..., Any] | None = None
    """(what ``load`` gave, configuration) -> the ``training.objectives.Objective`` that is trained on it; None: the
    next token of a text"""
    licence: str = ""
    """in words, as far as it is stated"""
    size: str = ""
    """of the file that is to be had, in words"""
    fetch: tuple[str, ...] = ()
    """shell commands that bring it into the data directory, which is written as DIR"""
    known_sha256: str = ""
    """of the content that the committed results were made with, where other copies are read too; these are noted"""


@contextmanager
def refusing(origin: str, path: Path) -> Iterator[None]:
    """Whatever reading ``path`` raises becomes a ValueError of one line: ``origin``, path, reason and what would do."""
    instead = "give one file of text, unpacked if need be" if origin == "--data-file" else "replace or remove it"
    try:
        yield
    except MemoryError:
        raise ValueError(f"{origin}: {path} does not fit into the memory; {instead}") from None
    except Exception as error:  # of a damaged archive zipfile and tarfile raise whatever their parsers raise
        raise ValueError(f"{origin}: {path} cannot be read ({why(error)}); {instead}") from None


def resolve_data_dir(data_dir: Path | None) -> Path | None:
    """``data_dir``, or else the directory that LINEAR_ROPE_DATA names, or else None.

    Raises ValueError if it is not a directory that can be read.
    """
    origin, named = "--data-dir", os.environ.get(DATA_DIR_VARIABLE)
    if data_dir is None:
        if not named:
            return None
        origin, data_dir = DATA_DIR_VARIABLE, Path(named)
    try:
        os.scandir(data_dir).close()
    except (OSError, ValueError) as error:
        what = f"{origin}: {data_dir} is not a directory that can be read ({why(error)})"
        raise ValueError(f"{what}; give the directory that holds the data sets") from None
    return data_dir


def check_regular(path: Path) -> None:
    """Raises ValueError or OSError unless ``path`` is a regular file: reading others may never end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise ValueError("it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file")


def file_sha256(path: Path, origin: str) -> str:
    """Of an archive as it is, of another file unpacked. Raises ValueError, begun with ``origin``, if it is no file."""
    if path.suffix == ".gz" and ".tar" not in path.suffixes:
        return hashlib.sha256(read_content(path, origin=origin)).hexdigest()
    with refusing(origin, path):
        check_regular(path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def read_content(path: Path, limit: int | None = None, origin: str = "--data-file", member: str | None = None) -> bytes:
    """The first ``limit`` bytes of a file (None: all); of a .gz or .xz file its content, of a .zip that of ``member``.

    ``member`` is the name of one of the files in a zip; None stands for the only one. Nothing is written to disk.

    Raises ValueError, which begins with ``origin``, if it is not a regular file, damaged, encrypted, or has more bytes
    than half of the free memory.
    """
    suffix = path.suffix.lower()
    with refusing(origin, path):
        check_regular(path)
        size = path.stat().st_size
        if not size:
            return b""  # a file of the kernel's may say so, and never end
        if limit is None and size > psutil.virtual_memory().available // 2:
            raise ValueError(f"it has {size:,} bytes, more than half of the free memory")
        if suffix == ".zip":
            with ZipFile(path) as archive, archive.open(_member(archive, member)) as unpacked:
                return unpacked.read(-1 if limit is None else limit)
        with OPENERS.get(suffix, open)(path, "rb") as file:
            content: bytes = file.read(-1 if limit is None else limit)
            return content


def _member(archive: ZipFile, name: str | None) -> str:
    """``name``, or the only file in a zip. Raises ValueError if it is not there, or not the only one."""
    members = [member for member in archive.namelist() if not member.endswith("/") and name in (None, member)]
    if len(members) != 1:
        raise ValueError(f"it holds {len(members)} files{f' {name}' if name else ''}, and not one")
    return members[0]


def members_of(archive: Path, wanted: re.Pattern[str], origin: str) -> Iterator[tuple[re.Match[str], bytes]]:
    """(match of its name, content) of those files of a .tar.gz or .tar.xz whose whole name matches ``wanted``.

    Nothing is extracted to disk; files of other names, links and devices are passed over.

    Raises ValueError, which begins with ``origin``, if it is damaged.
    """
    content = read_content(archive, origin=origin)
    with refusing(origin, archive), tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        for member in iter(tar.next, None):
            tar.members = []  # type: ignore[attr-defined]  # where tarfile would remember them all
            if member.isreg() and (name := wanted.fullmatch(member.name)):
                yield name, tar.extractfile(member).read()  # type: ignore[union-attr]


def told(left_out: Counter[str]) -> str:
    """A sentence, to stand at the end of a note, that says what reading left out; empty if that is nothing."""
    listed = ", ".join(f"{what} ({count:,})" for what, count in sorted(left_out.items()) if count)
    return f" Left out of the files: {listed}." if listed else ""


def cache_directory() -> Path:
    """Where downloads are kept: LINEAR_ROPE_CACHE, or the place the operating system has for caches."""
    return Path(os.environ.get(CACHE_VARIABLE) or user_cache_dir("linear-rope"))


def kept(key: bytes, make: "Callable[[], npt.NDArray[Any]]") -> "npt.NDArray[Any]":
    """What ``make`` gives, from the cache directory if it is there under this key, and else kept there if it can be."""
    import numpy as np

    path = cache_directory() / "tokens" / f"{hashlib.sha256(key).hexdigest()}.npy"
    checksum = path.with_suffix(".sha256")
    with suppress(OSError, ValueError):
        if file_sha256(path, CACHE_VARIABLE) == checksum.read_text("ascii"):
            found: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
            return found
    made = make()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(buffer := io.BytesIO(), made)
        write_atomically(path, buffer.getvalue())
        write_atomically(checksum, hashlib.sha256(buffer.getvalue()).hexdigest())
    return made


@dataclass(frozen=True)
class Download:
    """A file that its publisher offers, with the ``file_sha256`` by which we know it."""

    url: str
    sha256: str
    file_name: str
    """its name in the cache directory"""
    place: str
    """its name in the data directory"""

    @property
    def command(self) -> str:
        """What downloads it into the data directory, which is written as DIR."""
        return f"curl -fL --create-dirs -o DIR/{self.place} {self.url}"

    def cached(self) -> Path | None:
        """The file if it was downloaded before and is whole, else None."""
        path = cache_directory() / self.file_name
        with suppress(ValueError):
            return path if file_sha256(path, CACHE_VARIABLE) == self.sha256 else None
        return None

    def fetch(self) -> Path:
        """The file, downloaded unless the cache has it whole.

        Raises ValueError if it cannot be reached or kept, or is not the known file (then it is not kept).
        """
        path = self.cached()
        if path is not None:
            return path
        import pooch
        import requests

        pooch.get_logger().setLevel("WARNING")  # stderr is for errors; the line below says the same on stdout
        print(f"downloading {self.url} to {cache_directory()}", flush=True)
        instead = f"download it elsewhere and place it as {self.place} in --data-dir, or use --data stdlib"
        # Some publishers turn the name away that requests gives itself.
        downloader = pooch.HTTPDownloader(chunk_size=2**20, headers={"User-Agent": "linear-rope"})
        try:
            (cache_directory() / self.file_name).unlink(missing_ok=True)  # damaged, or of another version
            pooch.retrieve(self.url, None, self.file_name, cache_directory(), downloader=downloader)
        except requests.RequestException as error:
            status = "" if error.response is None else f" {error.response.status_code}"
            raise ValueError(f"{self.url} could not be reached ({type(error).__name__}{status}); {instead}") from None
        except OSError as error:
            what = f"the cache directory {cache_directory()} cannot be written ({why(error)})"
            raise ValueError(f"{what}; set {CACHE_VARIABLE} to a directory that can") from None
        path = self.cached()
        if path is None:
            (cache_directory() / self.file_name).unlink(missing_ok=True)
            what = f"what {self.url} sent does not have the known hash (sha256:{self.sha256}) and was not kept"
            raise ValueError(f"{what}; try again, or {instead}")
        return path


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of a data set, in one of several forms; what reads them is derived from it, and has a ``load``.

    Each name is looked for in the data directory, in each of ``folders``, as it is and packed with gzip. The first form
    of which all files are there is taken. Where none is, the last one is downloaded, if ``sha256`` knows its files.
    """

    name: str
    """of the data set"""
    note: str = ""
    """what must stand beside every figure of it"""
    forms: Sequence[Sequence[str]] = ()
    """names of the files of each form, in the order in which they are read"""
    folders: Sequence[str] = ("",)
    address: str = ""
    """where the last form's files are downloaded from; a name stands where it has {}"""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """by names: ``file_sha256`` of what is downloaded"""
    cache: str = "{}"
    """what a download is called in the cache directory; a name stands for {}"""
    instead: str = "another data set"
    """what to use where a file is missing that is not downloaded"""
    here: str | None = None
    """where a data set without files is, in words"""

    @property
    def origin(self) -> str:
        """What messages begin with."""
        return f"--data {self.name}"

    @property
    def downloads(self) -> list[Download]:
        """Those of the last form; none if they are not known."""
        place = f"{self.folders[0]}{{}}{'.gz' if self.address.endswith('{}.gz') else ''}"
        return [
            Download(self.address.format(name), self.sha256[name], self.cache.format(name), place.format(name))
            for form in self.forms[-1:]
            for name in form
            if name in self.sha256
        ]

    def find(self, data_dir: Path | None) -> str | None:
        """Where the files are in the data directory, or else in the cache directory, in words; None if they are not."""
        if not self.forms:
            return self.here
        if not (paths := self._in(data_dir)):
            paths = [path for download in self.downloads if (path := download.cached())]
            if not paths or len(paths) < len(self.forms[-1]):
                return None
        return f"{len(paths)} files in {os.path.commonpath(paths)}" if len(paths) > 1 else str(paths[0])

    def get(self, data_dir: Path | None) -> tuple[list[Path], str]:
        """The files, from the data directory or else downloaded; and where they are from, in words.

        Raises ValueError if they cannot be had.
        """
        if data_dir is not None and (found := self._in(data_dir)):
            places = " and ".join(path.relative_to(data_dir).as_posix() for path in found)
            return found, f"{places} in the data directory"
        if not self.downloads:
            missing = next(name for name in self.forms[0] if not self._place(data_dir, name))
            raise ValueError(
                f"{self.origin}: {self.folders[0]}{missing} is not there; place it in --data-dir (`data` prints the "
                f"commands), or use {self.instead}"
            )
        source = " and ".join(f"downloaded from {download.url}" for download in self.downloads)
        return [download.fetch() for download in self.downloads], source

    def check(self, paths: Sequence[Path]) -> None:
        """Raises ValueError if one has a name that ``sha256`` knows, and is another file."""
        for path in paths:
            known = self.sha256.get(path.name, self.sha256.get(path.name.removesuffix(".gz")))
            if known not in (None, file_sha256(path, self.origin)):
                reason = f"is damaged or another file (its hash is not sha256:{known})"
                raise ValueError(f"{self.origin}: {path} {reason}; replace or remove it")

    def _place(self, data_dir: Path | None, name: str) -> Path | None:
        """Raises ValueError if it cannot be told."""
        if data_dir is None:
            return None
        with refusing("the data directory", data_dir):
            places = (data_dir / f"{folder}{name}{end}" for folder in self.folders for end in ("", ".gz"))
            return next((path for path in places if path.is_file()), None)

    def _in(self, data_dir: Path | None) -> list[Path]:
        """All files of the first form that is there, or none."""
        for form in self.forms:
            found = [path for name in form if (path := self._place(data_dir, name))]
            if len(found) == len(form):
                return found
        return []
