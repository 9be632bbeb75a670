"""The IMDB film reviews of Maas et al. (2011) as one long text: about 100 MB, the size of enwik8."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments.data.archives import members_of
from experiments.data.corpus import BETWEEN, Corpus, DataSet, begin_after, corpus_of_text
from experiments.data.files import (
    Download,
    cache_directory,
    cache_refused,
    fetching,
    file_hash,
    find_file,
)
from experiments.records.files import write_atomically

DOWNLOAD = Download(
    url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    known_hash="sha256:c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    file_name="aclImdb_v1.tar.gz",
)
OFFICIAL_NAMES = ("aclImdb_v1.tar.gz", "imdb/aclImdb_v1.tar.gz")
PART_NAMES = ("imdb/aclImdb_labelled.tar.xz", "imdb/aclImdb_unsup.tar.xz")
LICENCE = "none stated; cite Maas et al. (2011)"
REVIEWS = {"pos": 12_500, "neg": 12_500, "unsup": 50_000}

REVIEW_NAME = re.compile(r"aclImdb/train/(pos|neg|unsup)/[0-9]{1,5}_[0-9]{1,2}\.txt")
ORDER = "reviews sorted by the sha256 of their member names, joined with a blank line"


def reviews_of(archive: Path) -> Iterator[tuple[str, bytes]]:
    """(member name, text) of the training and unlabelled reviews, as ``members_of`` has them."""
    return members_of(archive, REVIEW_NAME, "--data imdb")


def join_reviews(archives: Sequence[Path], expected: Mapping[str, int]) -> bytes:
    """All reviews as one text, in an order that mixes the labels and does not depend on how they were archived.

    ``expected`` is the number of reviews with each label; raises ValueError if another number is there, or if one is
    not in UTF-8.
    """
    reviews: dict[str, bytes] = {}
    for archive in archives:
        for name, text in reviews_of(archive):
            try:
                text.decode()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"--data imdb: {archive}, {name}: it is not UTF-8 ({error.reason}); replace or remove it"
                ) from None
            reviews[name] = text
    counts = Counter(name.split("/")[2] for name in reviews)
    if counts != expected:
        raise ValueError(
            f"--data imdb: the archives hold {dict(sorted(counts.items()))} reviews, expected "
            f"{dict(sorted(expected.items()))}; replace or remove {', '.join(map(str, archives))}"
        )
    mixed = sorted(reviews, key=lambda name: hashlib.sha256(name.encode()).digest())
    return BETWEEN.join(reviews[name] for name in mixed)


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
    if len(found) == 1:
        download.check(found[0], "--data imdb")
    archives, source = download.unless_found(data_dir, found)
    hashes = "".join(file_hash(archive, "sha256", "--data imdb") for archive in archives)
    joined = cache_directory() / f"imdb-{hashlib.sha256((ORDER + hashes).encode()).hexdigest()[:16]}.txt"
    checksum = joined.with_suffix(".sha256")
    note = "Review text of aclImdb (training and unlabelled reviews, mixed), split 90/5/5 by bytes: a split of our own."

    try:
        if joined.is_file() and joined.stat().st_size and checksum.is_file():
            corpus = _corpus(joined, source, note, sum(reviews.values()))
            if corpus.sha256.encode() == checksum.read_bytes():
                return corpus
        content = join_reviews(archives, reviews)
        joined.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(joined, content)
        write_atomically(checksum, hashlib.sha256(content).hexdigest())
    except OSError as error:
        raise cache_refused(error) from None
    return _corpus(joined, source, note, sum(reviews.values()))


def _corpus(joined: Path, source: str, note: str, reviews: int) -> Corpus:
    content = np.memmap(joined, dtype=np.uint8, mode="r")

    def documents() -> npt.NDArray[np.int64]:
        """No review has a blank line of its own."""
        newline = content == BETWEEN[0]
        begins = begin_after([*np.flatnonzero(newline[:-1] & newline[1:]) + len(BETWEEN), len(content)])
        if len(begins) != reviews:
            raise ValueError(
                f"--data imdb: blank lines make {len(begins)} documents of {reviews} reviews, so some review has its "
                "own; give --packing none"
            )
        return begins

    return corpus_of_text("imdb", content, source, note, documents=documents)


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
    licence=LICENCE,
    size="75,000 reviews, 84 MB packed",
    fetch=(fetching(DOWNLOAD.url, OFFICIAL_NAMES[1]),),
    known_sha256="1c4818dc534578bf7fa1278cc2499aeb7d110220df135317843f96d95752d96b",
)
