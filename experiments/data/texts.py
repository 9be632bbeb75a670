"""Texts: the running Python's sources, a file, the files of a zip archive, and documents in one."""

import hashlib
import os
import platform
import sysconfig
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments.data.archives import Documents
from experiments.data.corpus import BETWEEN, Corpus, begin_after, corpus_of_splits, corpus_of_text
from experiments.data.files import Files, cache_directory, cache_refused, file_sha256, read_content
from experiments.data.tables import told
from experiments.records.files import write_atomically

SOURCES = Path(sysconfig.get_path("stdlib"))
# Not part of the library, or different from machine to machine of the same version.
LEFT_OUT_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
LEFT_OUT_PREFIXES = ("_sysconfigdata", "sitecustomize", "usercustomize")
ORDER = "reviews sorted by the sha256 of their member names, joined with a blank line"
"""a part of the name of kept texts: another order would need another name"""


def source_files(directory: Path = SOURCES) -> list[Path]:
    """The library's .py files without its test suites, installed packages and what is generated per machine, sorted."""
    files = []
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = [name for name in subfolders if name not in LEFT_OUT_FOLDERS and not name.startswith("config-")]
        kept = (name for name in names if name.endswith(".py") and not name.startswith(LEFT_OUT_PREFIXES))
        files += [Path(folder, name) for name in kept]
    return sorted(files, key=lambda path: path.relative_to(directory).as_posix())


@dataclass(frozen=True, kw_only=True)
class StandardLibrary(Files):
    """The bytes of ``source_files``, one after another, split 90/5/5."""

    directory: Path = SOURCES

    def find(self, data_dir: Path | None) -> str | None:
        return f"this Python's own, {self.directory}" if (self.directory / "os.py").is_file() else None

    def load(self, *_: Path | None) -> Corpus:
        """Raises ValueError if this Python came without its sources (zipped or stripped) or they cannot be read."""
        instead = "install a Python with its sources, or use --data text --data-file FILE"
        if self.find(None) is None:
            raise ValueError(f"{self.origin}: no standard library sources in {self.directory}; {instead}")
        files = source_files(self.directory)
        try:
            sources = [path.read_bytes() for path in files]
        except OSError as error:
            raise ValueError(f"{self.origin}: {error.filename} cannot be read ({error.strerror}); {instead}") from None
        version = platform.python_version()
        return corpus_of_text(
            self.name,
            b"".join(sources),
            source=f"Python {version} standard library, {len(files)} files",
            note=f"Source code of the Python {version} standard library, split 90/5/5: "
            "another Python version has other text, so compare figures of equal sha256 only.",
            documents=lambda: begin_after(accumulate(map(len, sources))),
        )


@dataclass(frozen=True, kw_only=True)
class OwnFile(Files):
    """The bytes of a file of the user's, as ``read_content`` has them."""

    def load(self, data_dir: Path | None, data_file: Path | None) -> Corpus:
        """Raises ValueError if it cannot be read or is empty."""
        assert data_file is not None  # because of needs_file
        note = f"A file of the user's own ({data_file.name}), split 90/5/5: compare figures of equal sha256 only."
        return corpus_of_text(self.name, read_content(data_file), data_file.name, note)


@dataclass(frozen=True, kw_only=True)
class TextFile(Files):
    """The ``length`` bytes of a file, whose sha256 is ``content``; with ``cut`` it may be longer. Split 90/5/5."""

    length: int
    content: str
    cut: bool = False

    def load(self, data_dir: Path | None, _: Path | None = None) -> Corpus:
        (path,), source = self.get(data_dir)
        found = read_content(path, self.length + 1, self.origin)  # one byte more, so that a longer file is noticed
        if self.cut and len(found) > self.length:
            found, source = found[: self.length], f"the first {self.length:,} bytes of {source}"
        return corpus_of_text(self.name, found, source, self.note, self.content)


@dataclass(frozen=True, kw_only=True)
class ZippedSplits(Files):
    """Training, validation and test are three ``members`` of a zip archive."""

    members: tuple[str, str, str]

    def load(self, data_dir: Path | None, _: Path | None = None) -> Corpus:
        (path,), source = self.get(data_dir)
        self.check(path)
        splits = (np.frombuffer(read_content(path, None, self.origin, member), np.uint8) for member in self.members)
        return corpus_of_splits(self.name, splits, source, self.note)


@dataclass(frozen=True, kw_only=True)
class JoinedDocuments(Documents):
    """Documents as one text, split 90/5/5 by bytes.

    They are sorted by the sha256 of their names, which mixes labels and dates, and joined with a blank line.
    """

    def load(self, data_dir: Path | None, _: Path | None = None) -> Corpus:
        paths, source = self.get(data_dir)
        texts, left_out = self.mixed(paths)
        lengths = [len(text) + len(BETWEEN) for text in texts]
        note = self.note + told([left_out])
        return corpus_of_text(
            self.name, BETWEEN.join(texts), source, note, documents=lambda: begin_after(accumulate(lengths))
        )

    def mixed(self, paths: list[Path]) -> tuple[list[bytes], Counter[str]]:
        left_out = Counter[str]()
        texts = {match[0]: text.encode() for match, text in self.documents(paths, left_out)}
        order = sorted(texts, key=lambda name: hashlib.sha256(name.encode()).digest())
        return [texts[name] for name in order], left_out


@dataclass(frozen=True, kw_only=True)
class KeptDocuments(JoinedDocuments):
    """The same of documents without blank lines that take long to unpack.

    The text is kept in the cache directory under the hash of its archives, with its own sha256 beside it; every load
    checks both and joins again if the text is not what was written.
    """

    def load(self, data_dir: Path | None, _: Path | None = None) -> Corpus:
        paths, source = self.get(data_dir)
        hashes = "".join(file_sha256(path, self.origin) for path in paths)
        kept = cache_directory() / f"{self.name}-{hashlib.sha256((ORDER + hashes).encode()).hexdigest()[:16]}.txt"
        checksum = kept.with_suffix(".sha256")
        try:
            if kept.is_file() and kept.stat().st_size and checksum.is_file():
                corpus = self._corpus(kept, source)
                if corpus.sha256.encode() == checksum.read_bytes():
                    return corpus
            content = BETWEEN.join(self.mixed(paths)[0])
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(kept, content)
            write_atomically(checksum, hashlib.sha256(content).hexdigest())
        except OSError as error:
            raise cache_refused(error) from None
        return self._corpus(kept, source)

    def _corpus(self, kept: Path, source: str) -> Corpus:
        content = np.memmap(kept, dtype=np.uint8, mode="r")

        def documents() -> npt.NDArray[np.int64]:
            newline = content == BETWEEN[0]
            begins = begin_after([*np.flatnonzero(newline[:-1] & newline[1:]) + len(BETWEEN), len(content)])
            if len(begins) != sum(self.expected.values()):
                raise ValueError(
                    f"{self.origin}: blank lines make {len(begins)} documents of {sum(self.expected.values())}, so "
                    "some document has its own; give --packing none"
                )
            return begins

        return corpus_of_text(self.name, content, source, self.note, documents=documents)
