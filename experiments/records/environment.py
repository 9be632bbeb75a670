"""What a comparison ran on: versions, machine, code."""

import hashlib
import platform
import re
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from experiments.records.schema import Comparison, GitRecord, Software

if TYPE_CHECKING:  # a second that `run --help` has no use for
    import torch

PACKAGES = "linear-rope torch performer-pytorch einops numpy scipy pandas matplotlib safetensors".split()
OPTIONAL_PACKAGES = "pytorch-fast-transformers fla-core triton tokenizers".split()
"""named only where they are installed"""
PROOFS = "triton kernel"
"""the version that counts what was proved on a GPU, which grows while runs are made: no other version by that"""
ROOT = Path(__file__).parents[2]
CODE = [f"{place}.py" for place in "linear_rope/**/* experiments/train/**/* experiments/data/**/*".split()]
CODE += ["experiments/config.py", "experiments/variants.py", "linear_rope/ops/linear/cpp/*"]
"""what can change a number of a training run; figures, claims and commands cannot"""


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on, and which kernels compute them."""
    found = {"python": platform.python_version(), **dict.fromkeys(PACKAGES, "not installed")}
    for package in (*PACKAGES, *OPTIONAL_PACKAGES):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found | {f"{name} kernel": what for name, what in _kernels().items()}


def software(device: str) -> Software:
    """What trains runs on a device ("cpu" or "cuda") of this machine."""
    return Software(kernel=_kernel(_kernels(), device), torch=version("torch"), code_sha256=code_sha256())


def software_of(comparison: Comparison) -> Software:
    """What a comparison's record says that its runs were trained with."""
    versions = comparison.versions
    there = {name: str(versions.get(f"{name} kernel")) for name in ("native", "triton")}
    return Software(
        kernel=_kernel(there, str(comparison.machine.get("device"))),
        torch=str(versions.get("torch")),
        code_sha256=comparison.git.code_sha256,
    )


def _kernels() -> dict[str, str]:
    from linear_rope import kernels

    return kernels()


def _kernel(available: dict[str, str], device: str) -> str:
    if device == "cpu":
        return available["native"] if available["native"].startswith("C++") else "PyTorch"
    is_taken = available["triton"].startswith("for ") and "not taken" not in available["triton"]
    return "Triton where proved" if is_taken else "PyTorch"


def machine(device: "torch.device") -> dict[str, Any]:
    """The processor, memory and system, and the device that was trained on."""
    return {
        "cpu": _processor(),
        "cores": psutil.cpu_count(logical=True),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(terse=True),
        "device": "cpu" if device.type == "cpu" else _gpu(device),
    }


def git() -> GitRecord:
    """The commit of the code ("unknown" outside a git checkout), whether files differ from it, and their hash."""

    def told(*words: str) -> str:
        return subprocess.check_output(["git", "-C", str(ROOT), *words], stderr=subprocess.DEVNULL, text=True).strip()

    try:
        told("ls-files", "--error-unmatch", "linear_rope/__init__.py")  # an installed copy may lie in another project
        commit = told("rev-parse", "HEAD")
        changed = told("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        commit, changed = "unknown", ""
    return GitRecord(commit=commit, dirty=bool(changed), code_sha256=code_sha256())


def code_sha256() -> str:
    """Of the files that can change a number, with what a commit does not tell of."""
    digest = hashlib.sha256()
    for path in sorted(path for place in CODE for path in ROOT.glob(place)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _gpu(device: "torch.device") -> str:
    import torch

    return torch.cuda.get_device_name(device) if torch.cuda.is_available() else "a GPU of another machine"


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    named = re.search(r"(?m)^model name.*?: *(.*)$", information.read_text() if information.exists() else "")
    return named[1].strip() if named else platform.processor() or platform.machine()
