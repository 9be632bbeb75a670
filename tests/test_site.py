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
@pytest.mark.parametrize("broken", [(), ("absent.md", "there.md#nowhere")])
def test_a_broken_link_is_a_failure(tmp_path, broken):
    pytest.importorskip("mkdocs", reason="the documentation's packages (extra docs) are not installed")
    (words,) = re.findall(r"^mkdocs (build .*?)--site-dir", (PROJECT / ".ci" / "run").read_text(), re.MULTILINE)
    (tmp_path / "docs").mkdir()
    shutil.copy(PROJECT / "docs" / "hooks.py", tmp_path / "docs")
    links = "there.md#here", *broken
    (tmp_path / "docs" / "index.md").write_text(" ".join(f"[a page]({link})" for link in links))
    (tmp_path / "docs" / "there.md").write_text("```python a/file.py\nx = 1\n```\n\n## Here\n")
    settings = f"INHERIT: {PROJECT / 'mkdocs.yml'}\nnav: [index.md, there.md]\nplugins: []\nextra_css: []\n"
    (tmp_path / "mkdocs.yml").write_text(settings)
    command = [sys.executable, "-m", "mkdocs", *shlex.split(words), "-f", str(tmp_path / "mkdocs.yml")]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == bool(broken), built.stderr
    assert all((link in built.stderr) == (link in broken) for link in links)
