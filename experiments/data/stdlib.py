"""The source code of the running Python's own standard library: real text that every machine has."""

import os
import platform
import sysconfig
from itertools import accumulate
from pathlib import Path

from experiments.data.corpus import Corpus, DataSet, begin_after, corpus_of_text

SOURCES = Path(sysconfig.get_path("stdlib"))
# Not part of the library, or different from machine to machine of the same version.
LEFT_OUT_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
LEFT_OUT_PREFIXES = ("_sysconfigdata", "sitecustomize", "usercustomize")


def source_files(directory: Path) -> list[Path]:
    """The library's .py files without its test suites, installed packages and what is generated per machine, sorted."""
    files = []
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = [name for name in subfolders if name not in LEFT_OUT_FOLDERS and not name.startswith("config-")]
        kept = (name for name in names if name.endswith(".py") and not name.startswith(LEFT_OUT_PREFIXES))
        files += [Path(folder, name) for name in kept]
    return sorted(files, key=lambda path: path.relative_to(directory).as_posix())


def load(data_dir: Path | None, data_file: Path | None, *, directory: Path = SOURCES) -> Corpus:
    """The bytes of ``source_files``, one after another, split 90/5/5.

    Raises ValueError if this Python came without its sources (zipped or stripped) or they cannot be read.
    """
    instead = "install a Python with its sources, or use --data text --data-file FILE"
    if not (directory / "os.py").is_file():
        raise ValueError(f"--data stdlib: this Python has no standard library sources in {directory}; {instead}")
    files = source_files(directory)
    try:
        sources = [path.read_bytes() for path in files]
    except OSError as error:
        raise ValueError(f"--data stdlib: {error.filename} cannot be read ({error.strerror}); {instead}") from None
    version = platform.python_version()
    return corpus_of_text(
        "stdlib",
        b"".join(sources),
        source=f"Python {version} standard library, {len(files)} files",
        note=f"Source code of the Python {version} standard library, split 90/5/5: "
        "another Python version has other text, so compare figures of equal sha256 only.",
        documents=lambda: begin_after(accumulate(map(len, sources))),
    )


DATA_SET = DataSet(
    name="stdlib",
    description="The Python standard library's own source files: about 12 MB of code, on every machine.",
    load=load,
    find=lambda data_dir: f"this Python's own, {SOURCES}" if (SOURCES / "os.py").is_file() else None,
    licence="Python's own (PSF)",
    size="about 12 MB",
    when_missing="this Python came without its sources; install one that has them",
)
