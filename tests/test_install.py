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
    "right = (y - exact).abs().max().item() < 1e-6\n"
    "print(linear_rope.__file__, kernels()['native'], right, git().code_sha256, sep='\\n')\n"
)


def build(root: Path, **environment: str) -> tuple[Path, list[str]]:
    """The wheel of a copy of the project, unpacked, and the names of its shared libraries."""
    source, skipped = root / "source", shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("linear_rope", "experiments"):
        shutil.copytree(PROJECT / name, source / name, ignore=skipped)
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source / name)
    words = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        root / "wheels",
        source,
    ]
    process = subprocess.run(words, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    (wheel,) = (root / "wheels").glob("*.whl")
    assert "-py3-none-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root / "installed")
        return root / "installed", [name for name in archive.namelist() if name.endswith(".so")]


def ask(installed: Path) -> list[str]:
    """What the native kernel of the package there says of itself, whether attention is right, and the code's hash."""
    environment = os.environ | {"PYTHONPATH": str(installed)}
    words = [sys.executable, "-c", ASKED]
    process = subprocess.run(words, cwd=installed, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    where, *told = process.stdout.splitlines()
    assert where.startswith(str(installed))
    return told


@pytest.mark.slow
def test_without_a_compiler_all_but_the_native_kernel_is_installed(tmp_path):
    pytest.importorskip("setuptools", reason="wheels are built with setuptools")
    installed, libraries = build(tmp_path, CC="false", CXX="false")
    assert libraries == []
    kernel, right, _ = ask(installed)
    assert kernel.startswith("not built: no C++ compiler (GCC 12, Clang) was found, or it failed, ")
    assert right == "True"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_with_a_compiler_the_wheel_holds_the_native_kernel(tmp_path):
    pytest.importorskip("setuptools", reason="wheels are built with setuptools")
    installed, libraries = build(tmp_path)
    assert libraries == ["linear_rope/ops/linear/libnative.so"]
    kernel, right, code = ask(installed)
    assert kernel.startswith("C++ for ")
    assert right == "True"
    assert code == git().code_sha256  # records of both are of the same code
