"""The script for GPUs, with commands in place of Python and pytest that only say what they were asked for."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci/gpu"
PYTHON = """\
#!/bin/sh
case "$*" in
  *device_count*) echo {gpus} ;;
  *"run speed"*) exit 1 ;;
esac
echo "python $*" >> {log}
"""
PYTEST = """\
#!/bin/sh
echo "pytest $*" >> {log}
exit 1
"""


@pytest.mark.parametrize(("gpus", "steps"), [(0, 0), (1, 3), (2, 5)])
def test_every_step_runs_whatever_fails(tmp_path, gpus, steps):
    log = tmp_path / "log"
    for name, text in (("python", PYTHON), ("pytest", PYTEST)):
        (tmp_path / name).write_text(text.format(gpus=gpus, log=log))
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    run = subprocess.run(["bash", SCRIPT], env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 1
    assert run.stdout.count("\n+ ") + run.stdout.startswith("+ ") == steps
    if gpus:
        failed = [line for line in run.stderr.splitlines() if line.startswith("failed: ")]
        assert [line.split()[1] for line in failed] == ["pytest", "python"]
        assert "run convergence" in log.read_text()
