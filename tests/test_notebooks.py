"""The notebooks of the documentation: executed from beginning to end, and kept without what they print."""

import os
from pathlib import Path

import nbformat
import pytest

PROJECT = Path(__file__).parents[1]
NAMES = ["a-feature-map", "reading-a-comparison", "your-own-text"]


def test_they_are_kept_without_outputs():
    paths = sorted((PROJECT / "docs/notebooks").glob("*.ipynb"))
    assert [path.stem for path in paths] == NAMES
    for cell in (cell for path in paths for cell in nbformat.read(path, as_version=4).cells):
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name, tmp_path, monkeypatch):
    client = pytest.importorskip("nbclient", reason="nbclient is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(PROJECT / f"docs/notebooks/{name}.ipynb", as_version=4)
    client.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert "error" not in {output.output_type for output in outputs}
