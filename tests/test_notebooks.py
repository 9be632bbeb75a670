"""The notebooks of the documentation: executed from beginning to end, and kept without what they print."""

import os
from pathlib import Path

import nbformat
import pytest

PROJECT = Path(__file__).parents[1]
NOTEBOOKS = sorted((PROJECT / "docs/notebooks").glob("*.ipynb"))


def test_there_is_one_for_each_thing():
    assert [path.stem for path in NOTEBOOKS] == ["a-feature-map", "reading-a-comparison", "your-own-text"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_without_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path, monkeypatch):
    client = pytest.importorskip("nbclient", reason="nbclient is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(path, as_version=4)
    client.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    for cell in notebook.cells:
        assert not [output for output in cell.get("outputs", []) if output.output_type == "error"]
