"""All that only a GPU can show, in order of worth and within a time; docs/gpu.md says what it writes.

.ci/gpu [RESULTS] [--minutes 8] [--data FOLDER] [--rehearse]
"""

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from experiments.gpu.session import ARCHIVE, FAILED, ROOT, SUMMARY, Planned, Session
from experiments.gpu.speeds import PACKAGES
from experiments.gpu.step import COMPILED_TOGETHER, PROOFS

OPTIONAL = (*dict.fromkeys(PACKAGES.values()), "pytest", "msgspec", "pooch")
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


def take(data: Path | None, session: Session) -> None:
    """Makes a folder's wheels importable, its data sets known, and its earlier runs those that are gone on with."""
    if data is None:
        return
    packages = Path(tempfile.mkdtemp(prefix="gpu-packages-"))
    for wheel in data.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(packages)
    sys.path.append(str(packages))
    os.environ["PYTHONPATH"] += f"{os.pathsep}{packages}"
    os.environ["LINEAR_ROPE_DATA"] = str(data)
    if (data / ARCHIVE).exists():
        shutil.unpack_archive(data / ARCHIVE, session.runs, filter="data")


def missing(data: Path | None) -> list[str]:
    """What is not there, and would be used."""
    found = [f"the package {name}" for name in OPTIONAL if not importlib.util.find_spec(name)]
    found += [] if shutil.which(SANITIZER) else [f"the program {SANITIZER}"]
    found += [] if data else ["a folder of data (--data, or LINEAR_ROPE_DATA)"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog=".ci/gpu", description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", help="folder for what is found; OUT, or a new one, if not given")
    parser.add_argument("--minutes", type=float, help=f"within which it ends; {MINUTES:g}")
    parser.add_argument("--data", default=os.environ.get("LINEAR_ROPE_DATA"), help="folder of data sets and wheels")
    parser.add_argument("--rehearse", action="store_true", help="at toy sizes on the CPU, in Triton's interpreter")
    options = parser.parse_args()
    if not options.rehearse and not torch.cuda.is_available():
        print("no GPU that PyTorch can use: nothing was run; --rehearse runs it on the CPU", file=sys.stderr)
        return 1
    results = Path(options.results or os.environ.get("OUT") or tempfile.mkdtemp(prefix="gpu-")).resolve()
    results.mkdir(parents=True, exist_ok=True)
    minutes = options.minutes or (MINUTES_OF_REHEARSAL if options.rehearse else MINUTES)
    session = Session(results, 60 * minutes)
    data = Path(options.data).resolve() if options.data else None
    take(data, session)
    if options.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"
    session.about = about(options.rehearse, minutes, missing(data))
    print(f"results: {results}", *(f"{name}: {value}" for name, value in session.about.items()), sep="\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for group in plan(session, rehearses=options.rehearse):
        session.run(group)
    return tell(session)


def tell(session: Session) -> int:
    """Prints how each step and each target came out. Returns 1 if a step failed."""
    for outcome in session.outcomes:
        print(*outcome.values())
    for target in json.loads((session.results / SUMMARY).read_text())["targets"]:
        print(f"{target['verdict']:12} {target['measured'] or '':<22} {target['target']}")
    return int(any(outcome["outcome"] == FAILED for outcome in session.outcomes))


def about(rehearses: bool, minutes: float, lacking: list[str]) -> dict[str, Any]:
    """What the results are of."""
    versions = {name: version(name) for name in ("torch", "triton") if importlib.util.find_spec(name)}
    told = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "device": "a CPU" if rehearses else torch.cuda.get_device_name(),
        "commit": told.stdout.strip() or "unknown",
        "rehearsal": rehearses,
        "minutes": minutes,
        "lacking": lacking,
    } | versions


if __name__ == "__main__":
    sys.exit(main())
