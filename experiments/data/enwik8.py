"""The first 100,000,000 bytes of an English Wikipedia dump of 2006, with the standard 90/5/5 million byte split."""

from pathlib import Path

from experiments.data.corpus import Corpus, DataSet, corpus_of_text
from experiments.data.files import Download, find_file, read_content

SIZE = 100_000_000
SHA256 = "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"
DOWNLOAD = Download(
    url="http://mattmahoney.net/dc/enwik8.zip",
    known_hash="sha256:547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    file_name="enwik8.zip",
)
FILE_NAMES = ("enwik8", "enwik8.zip", "enwik8.gz", "enwik8/enwik8", "enwik8/enwik8.zip", "enwik8/enwik8.gz")
NOTE = (
    "enwik8 with the standard split of 90, 5 and 5 million bytes; published figures are of the whole test split, these "
    "of evenly spaced windows of it."
)


def locate(data_dir: Path | None, download: Download = DOWNLOAD) -> tuple[Path, str]:
    """The file that holds enwik8, from the data directory or else downloaded, and where it was found in words."""
    found = find_file(data_dir, FILE_NAMES)
    if found is not None and data_dir is not None:
        return found, f"{found.relative_to(data_dir).as_posix()} in the data directory"
    return download.fetch(), f"downloaded from {download.url}"


def load(
    data_dir: Path | None, data_file: Path | None, *, download: Download = DOWNLOAD, sha256: str = SHA256
) -> Corpus:
    """enwik8, checked against ``sha256`` (of the uncompressed content) wherever it came from."""
    path, source = locate(data_dir, download)
    # One byte more than belongs there, so that a longer file is noticed.
    return corpus_of_text("enwik8", read_content(path, SIZE + 1, "--data enwik8"), source, NOTE, sha256)


def find(data_dir: Path | None) -> Path | None:
    return find_file(data_dir, FILE_NAMES) or DOWNLOAD.cached()


DATA_SET = DataSet(
    name="enwik8",
    description="The first 100,000,000 bytes of English Wikipedia (2006), the standard byte-level benchmark.",
    load=load,
    find=find,
    when_missing="downloaded when first used (36 MB), or place enwik8, enwik8.zip or enwik8.gz in --data-dir",
    url=DOWNLOAD.url,
)
