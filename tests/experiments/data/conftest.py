import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.data.registry import DATA_SETS, load_data
from tests.experiments.data.made_up_files import Server

REAL_DATA = os.environ.get("LINEAR_ROPE_DATA")  # before the next fixture


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No data directory, an own cache and no proxy between a test and its server."""
    monkeypatch.delenv("LINEAR_ROPE_DATA", raising=False)
    monkeypatch.setenv("LINEAR_ROPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache"


@pytest.fixture
def real():
    """Loads a data set from the directory that LINEAR_ROPE_DATA names; the test is skipped where it is not there."""

    def load(name: str):
        directory = Path(REAL_DATA) if REAL_DATA else None
        if directory is None or DATA_SETS[name].find(directory) is None:
            pytest.skip(f"LINEAR_ROPE_DATA names no directory with {name}")
        return load_data(name, directory)

    return load


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "served").mkdir()
    with Server(tmp_path / "served") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
