"""All that only a GPU can show, in order of worth and within a time; docs/gpu.md says what it writes.

.ci/gpu [RESULTS] [--minutes 8] [--data FOLDER] [--rehearse]
"""

import argparse
import os
import sys
import tempfile
import zipfile
from pathlib import Path


def take_wheels(data: Path) -> None:
    """Makes a folder's wheels importable, here and in every step."""
    packages = Path(tempfile.mkdtemp(prefix="gpu-packages-"))
    for wheel in data.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(packages)
    sys.path.append(str(packages))
    os.environ["PYTHONPATH"] += f"{os.pathsep}{packages}"


def main() -> int:
    parser = argparse.ArgumentParser(prog=".ci/gpu", description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", help="folder for what is found; OUT, or a new one, if not given")
    parser.add_argument("--minutes", type=float, help="within which it ends; 8, or 2 of a rehearsal")
    parser.add_argument("--data", default=os.environ.get("LINEAR_ROPE_DATA"), help="folder of data sets and wheels")
    parser.add_argument("--rehearse", action="store_true", help="at toy sizes on the CPU, in Triton's interpreter")
    options = parser.parse_args()
    data = Path(options.data).resolve() if options.data else None
    if data is not None:
        take_wheels(data)
    import torch

    if not options.rehearse and not torch.cuda.is_available():
        print("no GPU that PyTorch can use: nothing was run; --rehearse runs it on the CPU", file=sys.stderr)
        return 1
    # Its modules import what may be among the wheels.
    from experiments.gpu.command import execute

    return execute(options.results, options.minutes, data, rehearses=options.rehearse)


if __name__ == "__main__":
    sys.exit(main())
