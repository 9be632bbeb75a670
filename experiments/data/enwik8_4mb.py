"""The first 4,000,000 bytes of enwik8: real text of a size that two cores can learn from."""

from pathlib import Path

from experiments.data import enwik8
from experiments.data.corpus import Corpus, DataSet, corpus_of_text
from experiments.data.files import Download, find_file, read_content

SIZE = 4_000_000
SHA256 = "9f9ca3a41e2b87a0268d00380577e2c308e07959b22a94c8d7b1e8901bdefc37"
FILE_NAMES = tuple(
    f"{folder}enwik8_first4000000{suffix}" for folder in ("enwik8_prefix/", "") for suffix in (".gz", "")
)


def load(
    data_dir: Path | None, data_file: Path | None, *, download: Download = enwik8.DOWNLOAD, sha256: str = SHA256
) -> Corpus:
    """The prefix from its own file if the data directory has it, else cut from the full enwik8; checked either way."""
    path = find_file(data_dir, FILE_NAMES)
    if path is not None:
        source = f"{path.name} in the data directory"
        content = read_content(path, SIZE + 1, "--data enwik8-4MB")
    else:
        path, full_source = enwik8.locate(data_dir, download)
        source = f"the first {SIZE:,} bytes of {full_source}"
        content = read_content(path, SIZE, "--data enwik8-4MB")
    note = f"The first {SIZE:,} bytes of enwik8, split 90/5/5: not comparable with published enwik8 figures."
    return corpus_of_text("enwik8-4MB", content, source, note, sha256)


def find(data_dir: Path | None) -> Path | None:
    return find_file(data_dir, FILE_NAMES) or enwik8.find(data_dir)


DATA_SET = DataSet(
    name="enwik8-4MB",
    description="The first 4,000,000 bytes of enwik8, for comparisons on a small machine. Its figures are its own.",
    load=load,
    find=find,
    when_missing="cut from enwik8, which is downloaded when first used (36 MB)",
    url=enwik8.DOWNLOAD.url,
)
