"""What installing builds: the native kernel where there is a compiler, and all else where there is none."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from experiments.records.environment import git

PROJECT = Path(__file__).parents[1]
ASKED = (
    "import torch\n"
    "from linear_rope import EluPlusOne, kernels, linear_attention\n"
    "import linear_rope\n"
    "q = torch.arange(12.0).view(1, 1, 6, 2).sin()\n"
    "y = linear_attention(q, q, q, feature_map=EluPlusOne(), causal=True)\n"
    "exact = linear_attention(q, q, q, feature_map=EluPlusOne(), causal=True, implementation='reference')\n"
    "from experiments.records.environment import git\n"
    "assert (y - exact).abs().max().item() < 1e-6\n"
    "print(linear_rope.__file__, kernels()['native'], git().code_sha256, sep='\\n')\n"
)


def python(*words: object, at: Path, **environment: str) -> str:
    """What a Python process with these arguments prints."""
    command, variables = [sys.executable, *map(str, words)], os.environ | environment
    process = subprocess.run(command, cwd=at, env=variables, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def copy_of_the_project(source: Path) -> Path:
    """So that nothing that an earlier build left in the checkout gets into a wheel."""
    for name in ("linear_rope", "experiments"):
        shutil.copytree(PROJECT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(PROJECT / name, source / name)
    return source


@pytest.mark.slow
@pytest.mark.parametrize("compiler", [True, pytest.param(False, marks=pytest.mark.full)])
def test_the_wheel_holds_the_native_kernel_where_there_is_a_compiler(tmp_path, compiler):
    pytest.importorskip("setuptools", reason="wheels are built with setuptools")
    if compiler and shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    pip = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path / "wheels")
    source = copy_of_the_project(tmp_path / "source")
    python(*pip, source, at=tmp_path, **({} if compiler else {"CC": "false", "CXX": "false"}))
    (wheel,) = (tmp_path / "wheels").glob("*-py3-none-*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
    assert libraries == ["linear_rope/ops/linear/libnative.so"] * compiler
    where, kernel, code = python("-c", ASKED, at=installed, PYTHONPATH=str(installed)).splitlines()
    assert where.startswith(str(installed))
    assert kernel.startswith("C++ for " if compiler else "not built: no C++ compiler (GCC 12, Clang) was found, or it ")
    assert code == git().code_sha256  # records of both are of the same code
