"""The IMDB film reviews of Maas et al. (2011) as one long text: about 100 MB, the size of enwik8."""

import gzip
import hashlib
import lzma
import posixpath
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import IO

import numpy as np

from experiments.data.corpus import (
    PIECE,
    Corpus,
    Download,
    Task,
    build_corpus,
    cache_directory,
    cache_refused,
    check_regular_file,
    file_hash,
    find_file,
    leaves_directory,
)
from experiments.errors import why
from experiments.records.files import write_atomically

DOWNLOAD = Download(
    url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    known_hash="md5:7c2ac02c03563afcf9b574c7e56c153a",
    file_name="aclImdb_v1.tar.gz",
)
OFFICIAL_NAMES = ("aclImdb_v1.tar.gz", "imdb/aclImdb_v1.tar.gz")
PART_NAMES = ("imdb/aclImdb_labelled.tar.xz", "imdb/aclImdb_unsup.tar.xz")
REVIEWS = {"pos": 12_500, "neg": 12_500, "unsup": 50_000}

REVIEW_NAME = re.compile(r"aclImdb/train/(pos|neg|unsup)/[0-9]{1,5}_[0-9]{1,2}\.txt")
LONGEST_REVIEW = 2**20
LONGEST_HEADER = 2**13
"""bytes; of a name, say. Some headers take tarfile a time that grows with their square."""
LARGEST_ARCHIVE = 2**30
"""unpacked bytes of one archive that are read or passed over; the official one has 0.3 GB"""
MOST_MEMBERS = 300_000
"""of one archive; the official one has 100,000"""
ORDER = "reviews sorted by the sha256 of their member names, joined with a blank line"


def reviews_of(archive: Path) -> Iterator[tuple[str, bytes]]:
    """(member name, text) of the training and unlabelled reviews of a tar archive, in its order.

    Nothing is extracted to disk. Only regular members named exactly like a review are read; whatever else the
    official archive holds is passed over.

    Raises ValueError if it is damaged, if it is larger than any such archive (``LARGEST_ARCHIVE``, ``MOST_MEMBERS``),
    or if a member, unpacked by somebody, could land outside of the directory it is put in.
    """
    check_regular_file(archive, "--data imdb")
    try:
        with gzip.open(archive) if archive.suffix == ".gz" else lzma.open(archive) as file:
            content = _Unpacked(file)  # type: ignore[arg-type]
            with tarfile.open(fileobj=content, mode="r:") as tar:  # type: ignore[call-overload]
                members = 0
                while (member := tar.next()) is not None:
                    tar.members.clear()  # where tarfile would remember them all
                    members += 1
                    _check_member(member, members)
                    if _is_review(member):
                        content.seek(member.offset_data)
                        yield member.name, content.take(member.size)
            content.read_to_end()  # where the checksum of the compression is
    except MemoryError:
        raise ValueError(f"--data imdb: {archive} does not fit into the memory; replace or remove it") from None
    # Of a damaged header tarfile raises whatever its parsers raise.
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError, zlib.error, ValueError, OverflowError) as error:
        raise ValueError(f"--data imdb: {archive} cannot be read ({why(error)}); replace or remove it") from None


def _is_review(member: tarfile.TarInfo) -> bool:
    is_file = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
    return is_file and bool(REVIEW_NAME.fullmatch(member.name)) and 0 <= member.size <= LONGEST_REVIEW


def _check_member(member: tarfile.TarInfo, number: int) -> None:
    """Raises ReadError if there are too many, or if one is or points out of the directory it would be unpacked in."""
    if number > MOST_MEMBERS:
        raise tarfile.ReadError(f"it has more than {MOST_MEMBERS:,} members")
    outside = leaves_directory(member.name)
    if member.issym() or member.islnk():
        # A symbolic link starts from its own directory, a hard link from that of the archive.
        start = posixpath.dirname(member.name) if member.issym() else ""
        outside = outside or bool(PureWindowsPath(member.linkname).anchor)
        outside = outside or leaves_directory(posixpath.normpath(posixpath.join(start, member.linkname)))
    if outside:
        raise tarfile.ReadError(f"its member {member.name[:100]!r} leads out of the directory it is unpacked in")


class _Unpacked:
    """What tarfile reads: forward, in small pieces and up to a limit, whatever sizes a header claims."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._position = 0

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        """For tarfile: as many bytes, or fewer at the end."""
        if size > LONGEST_HEADER:
            raise tarfile.ReadError(f"a header says that it is {size:,} bytes long")
        return self._read(size)

    def take(self, size: int) -> bytes:
        """Exactly as many bytes."""
        content = self._read(size)
        if len(content) < size:
            raise tarfile.ReadError("unexpected end of data")
        return content

    def seek(self, position: int) -> None:
        """Forward, or to the end if that comes first."""
        if position < self._position:
            raise tarfile.ReadError("its headers lead back to where they come from")
        self._check(position)
        while self._position < position and self._read(min(PIECE, position - self._position)):
            pass

    def read_to_end(self) -> None:
        while self._read(PIECE):
            pass

    def _read(self, size: int) -> bytes:
        content = self._file.read(size)
        self._position += len(content)
        self._check(self._position)
        return content

    @staticmethod
    def _check(position: int) -> None:
        if position > LARGEST_ARCHIVE:
            raise tarfile.ReadError(f"it unpacks to more than {LARGEST_ARCHIVE:,} bytes")


def join_reviews(archives: Sequence[Path], expected: Mapping[str, int]) -> bytes:
    """All reviews as one text, in an order that mixes the labels and does not depend on how they were archived.

    ``expected`` is the number of reviews with each label; raises ValueError if another number is there.
    """
    reviews = {name: text for archive in archives for name, text in reviews_of(archive)}
    counts = Counter(name.split("/")[2] for name in reviews)
    if counts != expected:
        raise ValueError(
            f"--data imdb: the archives hold {dict(sorted(counts.items()))} reviews, expected "
            f"{dict(sorted(expected.items()))}; replace or remove {', '.join(map(str, archives))}"
        )
    mixed = sorted(reviews, key=lambda name: hashlib.sha256(name.encode()).digest())
    return b"\n\n".join(reviews[name] for name in mixed)


def locate(data_dir: Path | None, download: Download) -> tuple[list[Path], str]:
    """The archives, from the data directory or else downloaded, and where they were found in words."""
    parts = [find_file(data_dir, [name]) for name in PART_NAMES]
    found = [part for part in parts if part is not None]
    if len(found) == len(PART_NAMES):
        return found, " and ".join(PART_NAMES) + " in the data directory"
    official = find_file(data_dir, OFFICIAL_NAMES)
    if official is None:
        return [download.fetch()], f"downloaded from {download.url}"
    algorithm, expected_hash = download.known_hash.split(":")
    if file_hash(official, algorithm, "--data imdb") != expected_hash:
        raise ValueError(
            f"--data imdb: {official} is damaged or another file (its hash is not {download.known_hash}); "
            "replace or remove it"
        )
    return [official], f"{official.name} in the data directory"


def load(
    data_dir: Path | None,
    data_file: Path | None,
    *,
    download: Download = DOWNLOAD,
    reviews: Mapping[str, int] = REVIEWS,
) -> Corpus:
    """The labelled training reviews and the unlabelled ones, split 90/5/5 by bytes.

    Decompressing takes long, so the joined text is kept in the cache directory under the hash of its archives, with
    its own sha256 beside it; every load checks both and joins again if the text is not what was written.
    """
    archives, source = locate(data_dir, download)
    key = hashlib.sha256(ORDER.encode())
    for archive in archives:
        key.update(file_hash(archive, "sha256", "--data imdb").encode())
    joined = cache_directory() / f"imdb-{key.hexdigest()[:16]}.txt"
    checksum = joined.with_suffix(".sha256")
    note = "Review text of aclImdb (training and unlabelled reviews, mixed), split 90/5/5 by bytes: a split of our own."

    try:
        if joined.is_file() and joined.stat().st_size and checksum.is_file():
            corpus = build_corpus("imdb", np.memmap(joined, dtype=np.uint8, mode="r"), source, note)
            if corpus.sha256.encode() == checksum.read_bytes():
                return corpus
    except OSError as error:
        raise cache_refused(error) from None

    content = join_reviews(archives, reviews)
    try:
        joined.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(joined, content)
        write_atomically(checksum, hashlib.sha256(content).hexdigest())
    except OSError as error:
        raise cache_refused(error) from None
    return build_corpus("imdb", np.memmap(joined, dtype=np.uint8, mode="r"), source, note)


def find(data_dir: Path | None) -> str | None:
    parts = [find_file(data_dir, [name]) for name in PART_NAMES]
    if None not in parts:
        return " and ".join(map(str, parts))
    official = find_file(data_dir, OFFICIAL_NAMES) or DOWNLOAD.cached()
    return None if official is None else str(official)


TASK = Task(
    name="imdb",
    description="75,000 IMDB film reviews (training and unlabelled) as one text: about 100 MB of plain English.",
    load=load,
    find=find,
    when_missing="downloaded when first used (84 MB), or place aclImdb_v1.tar.gz in --data-dir",
    url=DOWNLOAD.url,
)
