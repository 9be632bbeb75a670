"""Any file of the user's."""

from pathlib import Path

from experiments.data import Corpus, Task, build_corpus, read_content


def load(data_dir: Path | None, data_file: Path | None) -> Corpus:
    """The bytes of ``data_file`` (decompressed if it ends in .gz or .zip), split 90/5/5.

    Raises ValueError if it is missing, not a regular file, unreadable or empty.
    """
    if data_file is None:
        raise ValueError("--data text reads a file of yours; name it with --data-file FILE")
    if not data_file.exists():
        raise ValueError(f"--data-file: there is no file {data_file}; give the path of a file with text")
    if not data_file.is_file():
        kind = "a directory" if data_file.is_dir() else "not a regular file"
        raise ValueError(f"--data-file: {data_file} is {kind}; give the path of one file with text")
    note = f"A file of the user's own ({data_file.name}), split 90/5/5: compare figures of equal sha256 only."
    return build_corpus("text", read_content(data_file), data_file.name, note)


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
