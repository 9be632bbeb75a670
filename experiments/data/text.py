"""The data set that is a file of the user's."""

from pathlib import Path

from experiments.data.corpus import Corpus, DataSet, corpus_of_text
from experiments.data.files import read_content


def load(data_dir: Path | None, data_file: Path | None) -> Corpus:
    """The bytes of ``data_file``, as ``read_content`` has them. Raises ValueError, also if it is empty."""
    assert data_file is not None  # because of needs_file
    content = read_content(data_file)
    note = f"A file of the user's own ({data_file.name}), split 90/5/5: compare figures of equal sha256 only."
    return corpus_of_text("text", content, data_file.name, note)


DATA_SET = DataSet(
    name="text",
    description="Any file of yours, read as bytes.",
    load=load,
    find=lambda data_dir: None,
    when_missing="give the file with --data-file FILE",
    needs_file=True,
)
