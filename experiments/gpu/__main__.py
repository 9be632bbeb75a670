"""All that only a GPU can show, in order of worth and within a time; docs/gpu.md says what it writes.

.ci/gpu [RESULTS] [--minutes 8] [--data FOLDER] [--rehearse]
"""

import argparse
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # its modules import what may be among the wheels
    from experiments.gpu.session import Planned, Session

SANITIZER = "compute-sanitizer"
MINUTES, MINUTES_OF_REHEARSAL = 8.0, 2.0


def take_wheels(data: Path) -> None:
    """Makes a folder's wheels importable, here and in every step."""
    packages = Path(tempfile.mkdtemp(prefix="gpu-packages-"))
    for wheel in data.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(packages)
    sys.path.append(str(packages))
    os.environ["PYTHONPATH"] += f"{os.pathsep}{packages}"


def plan(session: "Session", *, rehearses: bool) -> "list[list[Planned]]":
    """Groups of steps, one after the other. Only in the first, where nothing is timed, steps run beside each other."""
    from experiments.gpu.session import Planned
    from experiments.gpu.step import COMPILED_TOGETHER, PROOFS

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


def about(rehearses: bool, minutes: float) -> dict[str, Any]:
    """What the results are of."""
    import torch

    # The distribution of Triton has several names.
    modules = [importlib.import_module(name) for name in ("torch", "triton") if importlib.util.find_spec(name)]
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout if shutil.which("git") else ""
    return {
        "device": "a CPU" if rehearses else torch.cuda.get_device_name(),
        "commit": told.strip() or "unknown",
        "rehearsal": rehearses,
        "minutes": minutes,
        SANITIZER: shutil.which(SANITIZER) or "is not here: no memcheck, no racecheck",
    } | {module.__name__: module.__version__ for module in modules}


def main() -> int:
    parser = argparse.ArgumentParser(prog=".ci/gpu", description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", help="folder for what is found; OUT, or a new one, if not given")
    parser.add_argument("--minutes", type=float, help="within which it ends; 8, or 2 of a rehearsal")
    parser.add_argument("--data", default=os.environ.get("LINEAR_ROPE_DATA"), help="folder of data sets and wheels")
    parser.add_argument("--rehearse", action="store_true", help="at toy sizes on the CPU, in Triton's interpreter")
    options = parser.parse_args()
    if options.data:
        os.environ["LINEAR_ROPE_DATA"] = str(Path(options.data).resolve())
        take_wheels(Path(options.data))
    import torch

    if options.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"
    elif not torch.cuda.is_available():
        print("no GPU that PyTorch can use: nothing was run; --rehearse runs it on the CPU", file=sys.stderr)
        return 1
    from experiments.gpu.session import ARCHIVE, Session

    minutes = options.minutes or (MINUTES_OF_REHEARSAL if options.rehearse else MINUTES)
    results = Path(options.results or os.environ.get("OUT") or tempfile.mkdtemp(prefix="gpu-")).resolve()
    session = Session(results, 60 * minutes, about(options.rehearse, minutes))
    if options.data and (archive := Path(options.data, ARCHIVE)).exists():
        shutil.unpack_archive(archive, session.runs, filter="data")
    print(f"results: {results}", *(f"{name}: {value}" for name, value in session.about.items()), sep="\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for group in plan(session, rehearses=options.rehearse):
        session.run(group)
    return session.tell()


if __name__ == "__main__":
    sys.exit(main())
