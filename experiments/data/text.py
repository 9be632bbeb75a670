"""Any file of the user's."""

from pathlib import Path

from experiments.data.corpus import Corpus, Task, build_corpus, read_content


def load(data_dir: Path | None, data_file: Path | None) -> Corpus:
    """The bytes of ``data_file`` (decompressed if it ends in .gz or .zip), split 90/5/5.

    Raises ValueError if it is missing, not a regular file, unreadable, damaged, too large or empty.
    """
    if data_file is None:
        raise ValueError("--data text reads a file of yours; name it with --data-file FILE")
    content = read_content(data_file)
    note = f"A file of the user's own ({data_file.name}), split 90/5/5: compare figures of equal sha256 only."
    return build_corpus("text", content, data_file.name, note)


def find(data_dir: Path | None) -> str | None:
    return None


TASK = Task(
    name="text",
    description="Any file of yours, read as bytes.",
    load=load,
    find=find,
    when_missing="give the file with --data-file FILE",
    needs_file=True,
)
