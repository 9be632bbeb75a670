"""The steps of the command for a GPU, run in order of worth, and what it prints."""

import importlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from experiments.gpu.session import ARCHIVE, FAILED, ROOT, SUMMARY, Planned, Session
from experiments.gpu.speeds import PACKAGES
from experiments.gpu.step import COMPILED_TOGETHER, PROOFS

OF_TESTS = "pytest", "xdist"
OF_TRAINING = "msgspec", "pooch", "psutil", "rich"
OF_RUNS = "filelock", "safetensors", "pandas", "scipy", "matplotlib", "tokenizers"
OPTIONAL = (*dict.fromkeys(PACKAGES.values()), *OF_TESTS, *OF_TRAINING, *OF_RUNS)
"""packages without which something is left out"""
SANITIZER = "compute-sanitizer"
MINUTES, MINUTES_OF_REHEARSAL = 8.0, 2.0


def plan(session: Session, *, rehearses: bool) -> list[list[Planned]]:
    """Groups of steps, one after the other. Only in the first, where nothing is timed, steps run beside each other."""
    mode = "rehearses" if rehearses else "measures"

    def step(name: str, share: float, module: str = "", before: tuple[str, ...] = (), **environment: str) -> Planned:
        words = f"-m experiments.gpu.{module or name} {name} {session.records} {{ends}} {mode}".split()
        return Planned(name, share, [*before, sys.executable, *words], environment)

    share = 0.45 if rehearses else 0.19  # an interpreter is slow
    first = [step(f"proof-{number}", share, "proof") for number in range(1 if rehearses else PROOFS)]
    first.append(step("tests", share))
    if shutil.which(SANITIZER):
        uncached = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        for tool in ("memcheck", "racecheck"):
            first.append(step(tool, share, "proof", (SANITIZER, "--tool", tool, "--error-exitcode", "9"), **uncached))
    if not rehearses:
        # Of kernels that are timed while others run none is to be kept as the fastest.
        first += [step(f"compile-{what}", share, "speeds", FLA_CACHE_RESULTS="0") for what in ("speeds", "peers")]
        first += [step(f"compile-training-{number}", share, "training") for number in range(COMPILED_TOGETHER)]
    preset, device = ("smoke --variants elu+1-none", "cpu") if rehearses else ("gpu-small", "cuda")
    words = f"-m experiments run convergence --preset {preset} --device {device} --out {session.runs}"
    research = Planned("research", 1.0, [sys.executable, *words.split(), "--for", "{seconds}s"])
    return [first, [step("speeds", 0.28)], [step("peers", 0.1, "speeds")], [step("training", 0.2)], [research]]


def execute(results: str | None, minutes: float | None, data: Path | None, *, rehearses: bool) -> int:
    """All of it. Returns 1 if a step failed."""
    folder = Path(results or os.environ.get("OUT") or tempfile.mkdtemp(prefix="gpu-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    minutes = minutes or (MINUTES_OF_REHEARSAL if rehearses else MINUTES)
    session = Session(folder, 60 * minutes)
    if data is not None:
        os.environ["LINEAR_ROPE_DATA"] = str(data)
        if (data / ARCHIVE).exists():
            shutil.unpack_archive(data / ARCHIVE, session.runs, filter="data")
    if rehearses:
        os.environ["TRITON_INTERPRET"] = "1"
    session.about = about(rehearses, minutes, missing(data))
    print(f"results: {folder}", *(f"{name}: {value}" for name, value in session.about.items()), sep="\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for group in plan(session, rehearses=rehearses):
        session.run(group)
    return tell(session)


def missing(data: Path | None) -> list[str]:
    """What is not there, and would be used."""
    found = [f"the package {name}" for name in OPTIONAL if not importlib.util.find_spec(name)]
    found += [] if shutil.which(SANITIZER) else [f"the program {SANITIZER}"]
    found += [] if data else ["a folder of data (--data, or LINEAR_ROPE_DATA)"]
    return found


def tell(session: Session) -> int:
    """Prints how each step and each target came out. Returns 1 if a step failed."""
    for outcome in session.outcomes:
        print(*outcome.values())
    for target in json.loads((session.results / SUMMARY).read_text())["targets"]:
        print(f"{target['verdict']:12} {target['measured'] or '':<22} {target['target']}")
    return int(any(outcome["outcome"] == FAILED for outcome in session.outcomes))


def about(rehearses: bool, minutes: float, lacking: list[str]) -> dict[str, Any]:
    """What the results are of."""
    # The distribution of Triton has several names.
    modules = [importlib.import_module(name) for name in ("torch", "triton") if importlib.util.find_spec(name)]
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout if shutil.which("git") else ""
    return {
        "device": "a CPU" if rehearses else torch.cuda.get_device_name(),
        "commit": told.strip() or "unknown",
        "rehearsal": rehearses,
        "minutes": minutes,
        "lacking": lacking,
    } | {module.__name__: module.__version__ for module in modules}
