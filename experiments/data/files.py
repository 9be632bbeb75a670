"""Finding, reading, unpacking and downloading the files that hold data sets.

Whatever a user gives is read from a regular file, in pieces that are counted, into memory alone.
"""

import gzip
import io
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import pooch
import psutil

from experiments.errors import why

DATA_DIR_VARIABLE = "LINEAR_ROPE_DATA"
CACHE_VARIABLE = "LINEAR_ROPE_CACHE"

LARGEST_TEXT = 2**32
"""bytes of a text, packed or not; at most half of the free memory besides, because all of it is kept there"""
SMALL_TEXT = 2**26
"""up to here a packed text may be as repetitive as it likes"""
LARGEST_RATIO = 100
"""of a larger text's size to its file's. DEFLATE reaches 1032 on zeros; on prose 2 to 4, on source and logs 5 to 30."""
LARGEST_ZIP_DIRECTORY = 2**20
"""bytes of a zip's table of contents, which zipfile reads at once; the one file that we look for takes a hundred"""
PIECE = 2**20
ARCHIVE_BEGINNINGS = (b"PK\3\4", b"\x1f\x8b\x08", b"\xfd7zXZ\0", b"BZh9", b"7z\xbc\xaf\x27\x1c", b"\x28\xb5\x2f\xfd")
"""zip, gzip, xz, bzip2, 7z, zstd"""


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
        raise ValueError(
            f"{origin}: {data_dir} is not a directory that can be read ({why(error)}); "
            "give the directory that holds the data sets"
        ) from None
    return data_dir


def find_file(data_dir: Path | None, names: Sequence[str]) -> Path | None:
    """The first of ``names`` (relative to ``data_dir``) that is a file. Raises ValueError if that cannot be told."""
    if data_dir is None:
        return None
    with refusing("the data directory", data_dir):
        return next((data_dir / name for name in names if (data_dir / name).is_file()), None)


def check_regular(path: Path) -> None:
    """Raises ValueError or OSError unless ``path`` is a regular file: reading others may never end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise ValueError("it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file")


def file_hash(path: Path, algorithm: str, origin: str) -> str:
    """The hash of a file in hexadecimal. Raises ValueError, which begins with ``origin``, if it cannot be read."""
    with refusing(origin, path):
        check_regular(path)
        return str(pooch.file_hash(str(path), alg=algorithm))


def read_content(path: Path, limit: int | None = None, origin: str = "--data-file", member: str | None = None) -> bytes:
    """The first ``limit`` bytes of a file (None: all); of a .gz file its content, of a .zip file that of ``member``.

    ``member`` is the name of one of the files in a zip; None stands for the only one.

    What is packed is unpacked piece by piece and counted, so a file that would fill the memory is refused before it
    does; nothing is written to disk.

    Raises ValueError, which begins with ``origin``, if it is not a regular file, damaged, encrypted, too large (see
    ``LARGEST_TEXT``), packed more tightly than any text (``LARGEST_RATIO``) or another archive inside.
    """
    suffix = path.suffix.lower()
    with refusing(origin, path):
        check_regular(path)
        with _File(path) as file:
            if os.fstat(file.fileno()).st_size == 0:
                return b""  # a file of the kernel's may say so, and never end
            if suffix not in (".gz", ".zip"):
                return _read_bounded(file, file, limit)
            if suffix == ".zip":
                with ZipFile(file) as archive, archive.open(_member(archive, member)) as unpacked:
                    content = _read_bounded(unpacked, file, limit)
            else:
                content = _read_bounded(gzip.GzipFile(fileobj=file), file, limit)
        if content.startswith(ARCHIVE_BEGINNINGS):
            raise ValueError("it holds another archive")
    return content


class _File(io.FileIO):
    """A file for zipfile, which reads a table of contents whole, however long it claims to be."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > LARGEST_ZIP_DIRECTORY:
            raise BadZipFile("its table of contents is too long; it is to hold one file")
        return super().read(size) or b""


def _read_bounded(unpacked: io.IOBase | IO[bytes], packed: io.FileIO, limit: int | None) -> bytes:
    """The first ``limit`` bytes of ``unpacked``, which reads from ``packed``; what headers say of sizes does not count.

    Raises ValueError as soon as it is known to be too much.
    """
    largest = min(LARGEST_TEXT, psutil.virtual_memory().available // 2)
    pieces: list[bytes] = []
    size, start = 0, packed.tell()
    too_large = limit is None and os.fstat(packed.fileno()).st_size > largest
    while not too_large and (piece := unpacked.read(PIECE if limit is None else min(PIECE, limit - size))):
        pieces.append(piece)
        size += len(piece)
        if size > SMALL_TEXT and size > LARGEST_RATIO * (packed.tell() - start):
            raise ValueError(f"it unpacks to {LARGEST_RATIO} times its size and more, as no long text does")
        too_large = size > largest
    if too_large:
        raise ValueError(
            f"it has more than {largest:,} bytes, the most that is read ({LARGEST_TEXT:,}, or half of the free memory)"
        )
    return b"".join(pieces)


def _member(archive: ZipFile, name: str | None) -> ZipInfo:
    """The file of a name in a zip, or the only one there. Raises ValueError if it is not there, or something odd."""
    for member in archive.infolist():
        if leaves_directory(member.orig_filename):
            raise ValueError(f"it holds {member.orig_filename[:100]!r}, a name that leads out of a directory")
    # Not is_dir(), which fails where a name is empty.
    members = [member for member in archive.infolist() if not member.filename.endswith("/")]
    if name is not None:
        members = [member for member in members if member.filename == name]
    if len(members) != 1:
        raise ValueError(f"it holds {len(members)} files{f' {name}' if name else ''}, and not one")
    (only,) = members
    if stat.S_ISLNK(only.external_attr >> 16):
        raise ValueError("it holds a link and not a file")
    if only.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise ValueError("it is packed with a method other than deflate")  # others have no bound on what a call returns
    return only


def leaves_directory(name: str) -> bool:
    """Whether a member of an archive, unpacked under this name, could land outside of the directory it is put in."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    return posix.is_absolute() or bool(windows.drive or windows.root) or ".." in (*posix.parts, *windows.parts)


def cache_directory() -> Path:
    """Where downloads are kept: LINEAR_ROPE_CACHE, or the place the operating system has for caches."""
    return Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("linear-rope"))


def cache_refused(error: OSError) -> ValueError:
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
    places: tuple[str, ...] = ()
    """in the data directory, where it may lie, packed or not"""

    def cached(self) -> Path | None:
        """The file if it was downloaded before and is whole, else None. Raises ValueError if it is not a file."""
        path = cache_directory() / self.file_name
        return path if os.path.lexists(path) and self.is_known(path, CACHE_VARIABLE) else None

    def is_known(self, path: Path, origin: str) -> bool:
        """Whether ``path`` is this file. Raises ValueError, which begins with ``origin``, if it cannot be read."""
        algorithm, known = self.known_hash.split(":")
        return file_hash(path, algorithm, origin) == known

    def check(self, path: Path, origin: str) -> None:
        """Raises ValueError, which begins with ``origin``, if ``path`` is not this file."""
        if not self.is_known(path, origin):
            raise ValueError(
                f"{origin}: {path} is damaged or another file (its hash is not {self.known_hash}); replace or remove it"
            )

    def unless_found(self, data_dir: Path | None, found: list[Path]) -> tuple[list[Path], str]:
        """What was found in the data directory, or else the downloaded file; and where it is from, in words."""
        if data_dir is None or not found:
            return [self.fetch()], f"downloaded from {self.url}"
        return found, in_data_directory(data_dir, found)

    def fetch(self) -> Path:
        """The file, downloaded unless the cache has it whole.

        Raises ValueError if it cannot be reached or kept, or is not the known file (then it is not kept).
        """
        if cached := self.cached():
            return cached
        import requests  # as late as pooch does, because it takes long to import

        pooch.get_logger().setLevel("WARNING")  # stderr is for errors; the line below says the same on stdout
        print(f"downloading {self.url} to {cache_directory()}", flush=True)
        place = self.places[0] if self.places else self.file_name
        instead = f"download it elsewhere and place it as {place} in --data-dir, or use --data stdlib"
        # Some publishers turn the name away that requests gives itself.
        downloader = pooch.HTTPDownloader(chunk_size=2**20, headers={"User-Agent": "linear-rope"})
        try:
            path = pooch.retrieve(self.url, self.known_hash, self.file_name, cache_directory(), downloader=downloader)
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


def find_all(data_dir: Path | None, downloads: Sequence[Download]) -> list[Path]:
    """All of the files in the data directory, or all in the cache directory; else none."""
    found = [path for download in downloads if (path := find_file(data_dir, download.places))]
    if len(found) < len(downloads):
        found = [path for download in downloads if (path := download.cached())]
    return found if len(found) == len(downloads) else []


def fetch_all(data_dir: Path | None, downloads: Sequence[Download]) -> tuple[list[Path], str]:
    """All of the files in the data directory, or else all downloaded; and where they are from, in words."""
    found = [path for download in downloads if (path := find_file(data_dir, download.places))]
    if data_dir is not None and len(found) == len(downloads):
        return found, in_data_directory(data_dir, found)
    return [download.fetch() for download in downloads], " and ".join(
        f"downloaded from {download.url}" for download in downloads
    )


def in_data_directory(data_dir: Path, paths: Iterable[Path]) -> str:
    return " and ".join(path.relative_to(data_dir).as_posix() for path in paths) + " in the data directory"


def where(paths: Sequence[Path]) -> str | None:
    """Where files are, in words; None if there are none."""
    folders = {path.parent for path in paths}
    if len(paths) > 1 and len(folders) == 1:
        return f"{len(paths)} files in {folders.pop()}"
    return " and ".join(map(str, paths)) or None


def fetching(url: str, place: str) -> str:
    """The command that downloads ``url`` to ``place`` in the data directory, which is written as DIR."""
    return f"curl -fL --create-dirs -o DIR/{place} {url}"
