"""Texts: the running Python's sources, a file, the files of a zip archive; and the documents of tar archives."""

import hashlib
import os
import platform
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from experiments.data.corpus import BETWEEN, Corpus, begins, corpus_of_splits, corpus_of_text
from experiments.data.examples import ExampleFiles, cut, mixed
from experiments.data.files import Files, file_sha256, kept, members_of, read_content, told

if TYPE_CHECKING:
    import pandas as pd

SOURCES = Path(sysconfig.get_path("stdlib"))
# Not part of the library, or different from machine to machine of the same version.
LEFT_OUT_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
LEFT_OUT_PREFIXES = ("_sysconfigdata", "sitecustomize", "usercustomize")
SPACES = " \t\n\r\v\f"
"""white space of ASCII; ``str.strip`` would take control characters of latin-1 too"""
ORDER = "reviews sorted by the sha256 of their member names, joined with a blank line"
"""a part of the name of kept texts: another order would need another name"""


def source_files(directory: Path = SOURCES) -> list[Path]:
    """The library's .py files without its test suites, installed packages and what is generated per machine, sorted."""
    files = []
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = [name for name in subfolders if name not in LEFT_OUT_FOLDERS and not name.startswith("config-")]
        kept = (name for name in names if name.endswith(".py") and not name.startswith(LEFT_OUT_PREFIXES))
        files += [Path(folder, name) for name in kept]
    return sorted(files, key=Path.as_posix)


@dataclass(frozen=True, kw_only=True)
class StandardLibrary(Files):
    """The bytes of ``source_files``, one after another, split 90/5/5."""

    directory: Path = SOURCES

    def load(self, *_: Path | None) -> Corpus:
        """Raises ValueError if this Python came without its sources (zipped or stripped) or they cannot be read."""
        instead = "install a Python with its sources, or use --data text --data-file FILE"
        if not (self.directory / "os.py").is_file():
            raise ValueError(f"{self.origin}: no standard library sources in {self.directory}; {instead}")
        try:
            sources = [path.read_bytes() for path in source_files(self.directory)]
        except OSError as error:
            raise ValueError(f"{self.origin}: {error.filename} cannot be read ({error.strerror}); {instead}") from None
        version = platform.python_version()
        return corpus_of_text(
            self.name,
            b"".join(sources),
            source=f"Python {version} standard library, {len(sources)} files",
            note=f"Source code of the Python {version} standard library, split 90/5/5: "
            "another Python version has other text, so compare figures of equal sha256 only.",
            documents=begins(map(len, sources)),
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
        self.check([path])
        splits = (np.frombuffer(read_content(path, None, self.origin, member), np.uint8) for member in self.members)
        return corpus_of_splits(self.name, splits, source, self.note)


@dataclass(frozen=True, kw_only=True)
class Documents(Files):
    """The files of tar archives whose name matches ``pattern``."""

    pattern: str
    expected: Mapping[str, int]
    """how many there have to be of each value of the group ``counted`` in ``pattern``"""
    posts: bool = False
    """latin-1, of which the header lines and the white space around the rest are left out; other texts are UTF-8"""

    def documents(self, paths: Sequence[Path], left_out: Counter[str]) -> Iterator[tuple[re.Match[str], str]]:
        """The match and the text of each; ``left_out`` counts what is in no text.

        Raises ValueError if an archive is not as it should be, or they hold another number of texts.
        """
        counts = Counter[str]()
        self.check(paths)
        for path in paths:
            for match, content in members_of(path, re.compile(self.pattern), self.origin):
                counts[match["counted"]] += 1
                try:
                    yield match, _body(content, left_out) if self.posts else content.decode()
                except UnicodeDecodeError as error:
                    what = f"{path}, {match[0]}: it is not UTF-8 ({error.reason})"
                    raise ValueError(f"{self.origin}: {what}; replace or remove it") from None
        if counts != self.expected:
            held = f"hold {dict(sorted(counts.items()))} texts, expected {dict(sorted(self.expected.items()))}"
            raise ValueError(f"{self.origin}: {' and '.join(map(str, paths))} {held}; replace or remove them")


def _body(post: bytes, left_out: Counter[str]) -> str:
    """The header ends at the first empty line. It names the group ("Newsgroups:"), so a model that sees it has nothing
    to learn; that is what scikit-learn calls removing headers. Signatures and quotations are kept.
    """
    left_out["carriage returns at ends of lines"] += post.count(b"\r\n")
    _, _, body = post.decode("latin-1").replace("\r\n", "\n").partition("\n\n")
    text = body.strip(SPACES)
    left_out["white space around a post"] += text != body
    return text


@dataclass(frozen=True, kw_only=True)
class LabelledDocuments(Documents, ExampleFiles):
    """Documents with their official test split; validation is a tenth of the training split.

    ``pattern`` has the groups ``split`` and ``label`` too.
    """

    shortest: int = 0
    """words of a text in validation and test"""

    def splits(self, paths: Sequence[Path], left_out: Counter[str]) -> "list[pd.DataFrame]":
        import pandas as pd

        rows: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
        for match, text in self.documents(paths, left_out):
            rows[match["split"]].append((text, self.names.get(match["label"], match["label"])))
        labelled, test = (pd.DataFrame(found, columns=["text", "label"], dtype=str) for found in rows.values())
        training, *others = *cut(labelled, ["text"], (0.9, 0.1)), mixed(test)
        judged = [table[[len(text.split()) >= self.shortest for text in table["text"]]] for table in others]
        return [training, *judged]


@dataclass(frozen=True, kw_only=True)
class JoinedDocuments(Documents):
    """Documents as one text, split 90/5/5 by bytes.

    They are sorted by the sha256 of their names, which mixes labels and dates, and joined with a blank line.
    """

    kept: bool = False
    """whether the text is kept in the cache directory, because the archives take long to unpack"""

    def load(self, data_dir: Path | None, _: Path | None = None) -> Corpus:
        paths, source = self.get(data_dir)
        left_out = Counter[str]()

        @cache
        def joined() -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
            texts = {match[0]: text.encode() for match, text in self.documents(paths, left_out)}
            mixed = [texts[name] for name in sorted(texts, key=lambda name: hashlib.sha256(name.encode()).digest())]
            return np.frombuffer(BETWEEN.join(mixed), np.uint8), begins(len(text) + len(BETWEEN) for text in mixed)

        def part(number: int) -> npt.NDArray[Any]:
            if not self.kept:
                return joined()[number]
            key = [f"{number} {ORDER}", *(file_sha256(path, self.origin) for path in paths)]
            return kept(" ".join(key).encode(), lambda: joined()[number])

        content, documents = part(0), part(1)
        return corpus_of_text(self.name, content, source, self.note + told(left_out), documents=documents)
