"""Files that tests make, and a server for them."""

import functools
import gzip
import hashlib
import http.server
import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.data.files import Download

OFFLINE = "http://127.0.0.1:1/"  # a port that nothing listens on


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], odd: Iterable[tarfile.TarInfo] = ()) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:xz") if path.suffix == ".xz" else tarfile.open(path, "w:gz") as tar:
        for member in odd:
            tar.addfile(member)
        for name, content in members:
            information = tarfile.TarInfo(name)
            information.size = len(content)
            tar.addfile(information, io.BytesIO(content))


def write(path: Path, content: str | bytes) -> Path:
    """The file with this content, packed if it is called so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_zip(path: Path, members: Mapping[str, str]) -> Path:
    """A zip archive of these members; made twice it is the same, as no clock is in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return path


def known(path: Path, url: str = OFFLINE, places: tuple[str, ...] = ()) -> Download:
    """The download of a file that is known by its hash."""
    return Download(url, f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}", path.name, places)


class Server(http.server.ThreadingHTTPServer):
    """A web server of the files of one directory; ``requests`` counts what it was asked for."""

    def __init__(self, directory: Path) -> None:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(directory))
        super().__init__(("127.0.0.1", 0), handler)
        self.directory, self.requests, self.url = directory, 0, f"http://127.0.0.1:{self.server_port}"

    def process_request(self, *arguments: Any) -> None:
        self.requests += 1
        super().process_request(*arguments)
