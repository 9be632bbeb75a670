"""The IMDB film reviews of Maas et al. (2011) as one long text: about 100 MB, the size of enwik8."""

import hashlib
import lzma
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pooch

from experiments.data import Corpus, Download, Task, build_corpus, cache_directory, cache_refused, find_file

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
ORDER = "reviews sorted by the sha256 of their member names, joined with a blank line"


def reviews_of(archive: Path) -> Iterator[tuple[str, bytes]]:
    """(member name, text) of the training and unlabelled reviews of a tar archive, in its order.

    Nothing is extracted to disk. Only regular members named exactly like a review are read: whatever else an
    archive holds (links, absolute paths, huge members) is passed over.
    """
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isreg() and REVIEW_NAME.fullmatch(member.name) and member.size <= LONGEST_REVIEW:
                    file = tar.extractfile(member)
                    assert file is not None, "a regular member has content"
                    yield member.name, file.read()
            assert tar.fileobj is not None, "an archive read from a path has a file"
            while tar.fileobj.read(2**20):
                pass  # to the very end, where the checksum of the compression is
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"--data imdb: {archive} cannot be read ({error}); replace or remove it") from None


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
    if pooch.file_hash(str(official), alg=algorithm) != expected_hash:
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
        key.update(pooch.file_hash(str(archive)).encode())
    joined = cache_directory() / f"imdb-{key.hexdigest()[:16]}.txt"
    checksum = joined.with_suffix(".sha256")
    note = "Review text of aclImdb (training and unlabelled reviews, mixed), split 90/5/5 by bytes: a split of our own."

    if joined.is_file() and joined.stat().st_size and checksum.is_file():
        corpus = build_corpus("imdb", np.memmap(joined, dtype=np.uint8, mode="r"), source, note)
        if corpus.sha256.encode() == checksum.read_bytes():
            return corpus

    from experiments.record import write_atomically  # here, because it brings pandas, which takes long to import

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
