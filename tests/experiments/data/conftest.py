import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No data directory, an own cache and no proxy between a test and its server."""
    monkeypatch.delenv("LINEAR_ROPE_DATA", raising=False)
    monkeypatch.setenv("LINEAR_ROPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache"
