"""Small files in the place of those of data sets, and a server for them."""

import functools
import gzip
import hashlib
import http.server
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.data.corpus import DataSet
from experiments.data.registry import CATALOG, data_set, row_of

OFFLINE = "http://127.0.0.1:1/"  # a port that nothing listens on
ROWS = 60
"""of a file, a split or a folder"""
OF_FILES = [name for name in CATALOG["data"] if row_of(name).get("forms")]
DOWNLOADED = [name for name in OF_FILES if row_of(name).get("address")]


def reader_of(name: str) -> str:
    return row_of(name)["reader"].rpartition(":")[2]


def small(name: str, **changes: Any) -> DataSet:
    """A data set of the catalogue that has as much in it as ``place`` writes; its files are known by no hash."""
    row: dict[str, Any] = row_of(name) | {"sha256": {}}
    row |= {"shortest": 0} if "shortest" in row else {}
    if "expected" in row:
        row["expected"] = dict.fromkeys(row["expected"], ROWS)
    if "rows" in row:
        row["rows"] = [len(numbered(name)) for _ in row["rows"]]
    if reader_of(name) == "TextFile":
        row |= {"length": len(text_of("enwik8")), "content": hashlib.sha256(text_of("enwik8")).hexdigest()}
    return data_set(name, **row | changes)


def numbered(name: str) -> range:
    """The rows of a file; of one that is cut into three there have to be more."""
    return range(300 if name.endswith(("-part", "-scm-sample")) else ROWS)


def text_of(file: str) -> bytes:
    return "".join(f"{file} says {row} things.\n" for row in range(ROWS)).encode()


def table(name: str, file: str) -> bytes:
    """A table of texts that are all different, with quotation marks and a space behind each."""
    row = row_of(name)
    header = row.get("header") or ["index", *row["columns"]]
    labels = list(row.get("classes", ["0.0", "2.5", "5.000"]))
    lines = [] if "header" in row else ["\t".join(header)]
    for number in numbered(name):
        values = {column: f'{file} "{column} {number} ' for column in header}
        values |= {theirs: labels[number % len(labels)] for theirs, ours in row["columns"].items() if ours == "label"}
        lines.append("\t".join(values[column] for column in header))
    return "".join(f"{line}\n" for line in lines).encode()


def triplets(name: str) -> bytes:
    rows = [{"A": f"原告{n // 3}", "B": f"被告{n}", "C": f"其他{n}"} for n in numbered(name)]
    if not name.endswith("-sample"):
        rows = [{**row, "label": "BC"[n % 2]} for n, row in enumerate(rows)]
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


def documents(name: str) -> list[tuple[str, bytes]]:
    """The files of archives: reviews, or posts with header lines."""
    row, found = row_of(name), []
    groups = CATALOG["data"]["newsgroups"]["classes"]
    for counted in row["expected"]:
        for n in range(ROWS):
            if row.get("posts"):
                group, text = groups[n % 20], f"{counted} {n} café\n\n-- \nsigned\n"
                body = f"From: a@b\nNewsgroups: {group}\nSubject: x\n\n{text}".encode("latin-1")
                found.append((f"20news-bydate-{counted}/{group}/{n}", body))
            else:
                folder = f"train/{counted}" if "/" not in counted else counted
                found.append((f"aclImdb/{folder}/{n}_7.txt", f"{counted} {n} é<br />".encode()))
    return found


def contents(name: str, form: int = 0) -> dict[str, bytes]:
    """The files of a form of a data set, by their names in it; without the part of CoLA that some copies have."""
    row = row_of(name)
    forms = row["forms"][1:] if name == "cola" else row["forms"]
    return {file: _content(name, row, file) for file in forms[form]}


def _content(name: str, row: Mapping[str, Any], file: str) -> bytes:
    reader, buffer = reader_of(name), io.BytesIO()
    if ".tar" in file:
        labelled = [part for part in documents(name) if ("unsup" in part[0]) == ("unsup" in file)]
        return tar(labelled if file.endswith("xz") else reversed(documents(name)), file.rpartition(".")[2])
    if file.endswith(".zip"):
        with zipfile.ZipFile(buffer, "w") as archive:
            for member in row.get("members") or row["forms"][-2]:
                archive.writestr(zipfile.ZipInfo(member), _content(name, row, member))
        return buffer.getvalue()
    if reader == "Tables":
        return table(name, file)
    if reader == "Triplets":
        return triplets(name)
    return text_of("enwik8" if reader == "TextFile" else file)


def place(name: str, directory: Path, form: int = 0, end: str = "") -> list[Path]:
    """The files of a form, placed in a data directory; ``end`` packs texts."""
    row = row_of(name)
    return [
        write(directory / f"{row['folders'][0]}{file}{'' if '.tar' in file or '.zip' in file else end}", content)
        for file, content in contents(name, form).items()
    ]


def tar(members: Iterable[tuple[str, bytes]], form: str, odd: Iterable[tarfile.TarInfo] = ()) -> bytes:
    """An archive packed with gz or xz; made twice it is the same, as no clock is in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in odd:
            archive.addfile(member)
        for name, content in members:
            information = tarfile.TarInfo(name)
            information.size = len(content)
            archive.addfile(information, io.BytesIO(content))
    return lzma.compress(buffer.getvalue()) if form == "xz" else gzip.compress(buffer.getvalue(), mtime=0)


def write(path: Path, content: str | bytes) -> Path:
    """The file with this content, packed if it is called so and is not yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" and ".tar" not in path.name else content)
    return path


class Server(http.server.ThreadingHTTPServer):
    """A web server of the files of one directory; ``requests`` counts what it was asked for."""

    def __init__(self, directory: Path) -> None:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(directory))
        super().__init__(("127.0.0.1", 0), handler)
        self.directory, self.requests, self.url = directory, 0, f"http://127.0.0.1:{self.server_port}"

    def process_request(self, *arguments: Any) -> None:
        self.requests += 1
        super().process_request(*arguments)
