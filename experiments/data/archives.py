"""Reading the files of tar archives, in their order and into memory alone."""

import gzip
import lzma
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from experiments.data.files import check_regular, leaves_directory, refusing

LONGEST = 2**14
"""bytes of a header, some of which take tarfile a time that grows with their square, and of most files"""
LARGEST_ARCHIVE = 2**30
"""unpacked bytes of one archive that are read or passed over; that of the IMDB reviews has 0.3 GB"""
MOST_MEMBERS = 300_000
"""of one archive; that of the IMDB reviews has 100,000"""


def members_of(
    archive: Path, wanted: re.Pattern[str], origin: str, longest: int = LONGEST
) -> Iterator[tuple[str, bytes]]:
    """(member name, content) of those files of a .tar.gz or .tar.xz archive whose whole name matches ``wanted``.

    Nothing is extracted to disk; files of other names are passed over. ``longest`` is the bytes that a file may have.

    Raises ValueError, which begins with ``origin``, if it is damaged, larger than any such archive
    (``LARGEST_ARCHIVE``, ``MOST_MEMBERS``), or holds a link, a device or a name that leads out of the directory it is
    unpacked in.
    """
    with refusing(origin, archive):
        check_regular(archive)
        with gzip.open(archive) if archive.suffix == ".gz" else lzma.open(archive) as file:
            content = _Forward(file)  # type: ignore[arg-type]
            with tarfile.open(fileobj=content, mode="r:") as tar:  # type: ignore[call-overload]
                for number, member in enumerate(iter(tar.next, None)):
                    if number == MOST_MEMBERS:
                        raise ValueError(f"it has more than {MOST_MEMBERS:,} members")
                    tar.members.clear()  # where tarfile would remember them all
                    plain = member.isdir() or (member.isreg() and not member.issparse())
                    if not plain or leaves_directory(member.name):
                        raise ValueError(f"its member {member.name[:100]!r} is a link, a device or leads out of it")
                    if member.isreg() and wanted.fullmatch(member.name):
                        content.seek(member.offset_data)
                        yield member.name, content.read(member.size, longest)
            while content.read(LONGEST):  # to the checksum of the compression
                pass


class _Forward:
    """What tarfile reads: forward, in small pieces and up to a limit, whatever sizes a header claims."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._position = 0

    def tell(self) -> int:
        return self._position

    def read(self, size: int, longest: int = LONGEST) -> bytes:
        if not 0 <= size <= longest:
            raise tarfile.ReadError(f"a header says that what follows is {size:,} bytes long")
        if self._position + size > LARGEST_ARCHIVE:
            raise tarfile.ReadError(f"it unpacks to more than {LARGEST_ARCHIVE:,} bytes")
        content = self._file.read(size)
        self._position += len(content)
        return content

    def seek(self, position: int) -> None:
        """Forward, or to the end if that comes first."""
        if not self._position <= position <= LARGEST_ARCHIVE:
            raise tarfile.ReadError(f"its headers lead back, or to more than {LARGEST_ARCHIVE:,} bytes")
        while self._position < position and self.read(min(LONGEST, position - self._position)):
            pass
