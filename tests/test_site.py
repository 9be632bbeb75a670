"""The documentation as a site: the way in which CI builds it tells of a broken link."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(("link", "status"), [("there.md#here", 0), ("absent.md", 1), ("there.md#nowhere", 1)])
def test_a_broken_link_is_a_failure(tmp_path, link, status):
    pytest.importorskip("mkdocs", reason="the documentation's packages (extra docs) are not installed")
    (words,) = re.findall(r"^mkdocs (build .*?)--site-dir", (PROJECT / ".ci" / "run").read_text(), re.MULTILINE)
    (tmp_path / "docs").mkdir()
    shutil.copy(PROJECT / "docs" / "hooks.py", tmp_path / "docs")
    (tmp_path / "docs" / "index.md").write_text(f"[a page]({link})\n")
    (tmp_path / "docs" / "there.md").write_text("```python a/file.py\nx = 1\n```\n\n## Here\n")
    settings = f"INHERIT: {PROJECT / 'mkdocs.yml'}\nnav: [index.md, there.md]\nplugins: []\nextra_css: []\n"
    (tmp_path / "mkdocs.yml").write_text(settings)
    command = [sys.executable, "-m", "mkdocs", *shlex.split(words), "-f", str(tmp_path / "mkdocs.yml")]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == status, built.stderr
    assert (link in built.stderr) == bool(status)
