"""The first 100,000,000 bytes of an English Wikipedia dump of 2006, and the first 4,000,000 of them."""

from pathlib import Path

from experiments.data.corpus import Corpus, DataSet, corpus_of_text
from experiments.data.files import Download, fetching, find_file, read_content

SIZE, PREFIX_SIZE = 100_000_000, 4_000_000
SHA256 = "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"
PREFIX_SHA256 = "9f9ca3a41e2b87a0268d00380577e2c308e07959b22a94c8d7b1e8901bdefc37"
DOWNLOAD = Download(
    url="http://mattmahoney.net/dc/enwik8.zip",
    known_hash="sha256:547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    file_name="enwik8.zip",
)
LICENCE = "Wikipedia text: GFDL then, CC BY-SA now"
FILE_NAMES = [folder + name for folder in ("", "enwik8/") for name in ("enwik8", "enwik8.zip", "enwik8.gz")]
PREFIX = "enwik8_first4000000"
PREFIX_NAMES = [folder + name for folder in ("enwik8_prefix/", "") for name in (f"{PREFIX}.gz", PREFIX)]


def load(data_dir: Path | None, _: object, *, download: Download = DOWNLOAD, sha256: str = SHA256) -> Corpus:
    """enwik8, checked against ``sha256`` (of the uncompressed content) wherever it came from."""
    found = find_file(data_dir, FILE_NAMES)
    (path,), source = download.unless_found(data_dir, [found] if found else [])
    note = (
        "enwik8 with the standard split of 90, 5 and 5 million bytes; published figures are of the whole test split, "
        "these of evenly spaced windows of it."
    )
    # One byte more than belongs there, so that a longer file is noticed.
    return corpus_of_text("enwik8", read_content(path, SIZE + 1, "--data enwik8"), source, note, sha256)


def load_prefix(
    data_dir: Path | None, _: object, *, download: Download = DOWNLOAD, sha256: str = PREFIX_SHA256
) -> Corpus:
    """The prefix from its own file if the data directory has it, else cut from the full enwik8; checked either way."""
    path, size = find_file(data_dir, PREFIX_NAMES), PREFIX_SIZE + 1
    if path is not None:
        source = f"{path.name} in the data directory"
    else:
        found, size = find_file(data_dir, FILE_NAMES), PREFIX_SIZE
        (path,), source = download.unless_found(data_dir, [found] if found else [])
        source = f"the first {PREFIX_SIZE:,} bytes of {source}"
    note = f"The first {PREFIX_SIZE:,} bytes of enwik8, split 90/5/5: not comparable with published enwik8 figures."
    return corpus_of_text("enwik8-4MB", read_content(path, size, "--data enwik8-4MB"), source, note, sha256)


DATA_SETS = (
    DataSet(
        name="enwik8",
        description="The first 100,000,000 bytes of English Wikipedia (2006), the standard byte-level benchmark.",
        load=load,
        find=lambda data_dir: find_file(data_dir, FILE_NAMES) or DOWNLOAD.cached(),
        when_missing="downloaded when first used (36 MB), or place enwik8, enwik8.zip or enwik8.gz in --data-dir",
        url=DOWNLOAD.url,
        licence=LICENCE,
        size="100,000,000 bytes, 36 MB packed",
        fetch=(fetching(DOWNLOAD.url, "enwik8.zip"),),
    ),
    DataSet(
        name="enwik8-4MB",
        description="The first 4,000,000 bytes of enwik8, for comparisons on a small machine. Its figures are its own.",
        load=load_prefix,
        find=lambda data_dir: find_file(data_dir, PREFIX_NAMES + FILE_NAMES) or DOWNLOAD.cached(),
        when_missing="cut from enwik8, which is downloaded when first used (36 MB)",
        url=DOWNLOAD.url,
        licence=LICENCE,
        size="4,000,000 bytes, cut from 36 MB packed",
        fetch=(fetching(DOWNLOAD.url, "enwik8.zip"),),
    ),
)
