"""The IMDB film reviews of Maas et al. (2011) as one long text: about 100 MB, the size of enwik8."""

import gzip
import hashlib
import lzma
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from experiments.data.corpus import Corpus, DataSet, corpus_of_text
from experiments.data.files import (
    Download,
    cache_directory,
    cache_refused,
    check_regular,
    file_hash,
    find_file,
    leaves_directory,
    refusing,
)
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
LONGEST = 2**14
"""bytes of a review, the longest of which has 14,282, or of a header: some take tarfile a time that grows with their
square"""
LARGEST_ARCHIVE = 2**30
"""unpacked bytes of one archive that are read or passed over; the official one has 0.3 GB"""
MOST_MEMBERS = 300_000
"""of one archive; the official one has 100,000"""
ORDER = "reviews sorted by the sha256 of their member names, joined with a blank line"


def reviews_of(archive: Path) -> Iterator[tuple[str, bytes]]:
    """(member name, text) of the training and unlabelled reviews of a tar archive, in its order.

    Nothing is extracted to disk; files that are not named like a review are passed over.

    Raises ValueError if it is damaged, larger than any such archive (``LARGEST_ARCHIVE``, ``MOST_MEMBERS``), or holds
    a link, a device or a name that leads out of the directory it is unpacked in.
    """
    with refusing("--data imdb", archive):
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
                    if member.isreg() and REVIEW_NAME.fullmatch(member.name):
                        content.seek(member.offset_data)
                        yield member.name, content.read(member.size)
            while content.read(LONGEST):  # to the checksum of the compression
                pass


class _Forward:
    """What tarfile reads: forward, in small pieces and up to a limit, whatever sizes a header claims."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._position = 0

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        if not 0 <= size <= LONGEST:
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


def archives_in(data_dir: Path | None) -> list[Path]:
    """The two parts, or else the official archive; none if neither is there."""
    parts = [part for name in PART_NAMES if (part := find_file(data_dir, [name]))]
    official = find_file(data_dir, OFFICIAL_NAMES)
    return parts if len(parts) == len(PART_NAMES) else [official] if official else []


def load(
    data_dir: Path | None, _: object, *, download: Download = DOWNLOAD, reviews: Mapping[str, int] = REVIEWS
) -> Corpus:
    """The labelled training reviews and the unlabelled ones, split 90/5/5 by bytes.

    Decompressing takes long, so the joined text is kept in the cache directory under the hash of its archives, with
    its own sha256 beside it; every load checks both and joins again if the text is not what was written.
    """
    found = archives_in(data_dir)
    if len(found) == 1 and not download.is_known(found[0], "--data imdb"):
        raise ValueError(
            f"--data imdb: {found[0]} is damaged or another file (its hash is not {download.known_hash}); "
            "replace or remove it"
        )
    archives, source = download.unless_found(data_dir, found)
    hashes = "".join(file_hash(archive, "sha256", "--data imdb") for archive in archives)
    joined = cache_directory() / f"imdb-{hashlib.sha256((ORDER + hashes).encode()).hexdigest()[:16]}.txt"
    checksum = joined.with_suffix(".sha256")
    note = "Review text of aclImdb (training and unlabelled reviews, mixed), split 90/5/5 by bytes: a split of our own."

    try:
        if joined.is_file() and joined.stat().st_size and checksum.is_file():
            corpus = corpus_of_text("imdb", np.memmap(joined, dtype=np.uint8, mode="r"), source, note)
            if corpus.sha256.encode() == checksum.read_bytes():
                return corpus
        content = join_reviews(archives, reviews)
        joined.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(joined, content)
        write_atomically(checksum, hashlib.sha256(content).hexdigest())
    except OSError as error:
        raise cache_refused(error) from None
    return corpus_of_text("imdb", np.memmap(joined, dtype=np.uint8, mode="r"), source, note)


def find(data_dir: Path | None) -> str | None:
    found = archives_in(data_dir) or filter(None, [DOWNLOAD.cached()])
    return " and ".join(map(str, found)) or None


DATA_SET = DataSet(
    name="imdb",
    description="75,000 IMDB film reviews (training and unlabelled) as one text: about 100 MB of plain English.",
    load=load,
    find=find,
    when_missing="downloaded when first used (84 MB), or place aclImdb_v1.tar.gz in --data-dir",
    url=DOWNLOAD.url,
)
