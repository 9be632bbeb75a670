"""What all parts of the runner pass on: a run, the directory that it is trained in, and what it needs of a machine."""

import math
import os
import sys
from pathlib import Path
from typing import NamedTuple

from experiments.extensions import choices


class Run(NamedTuple):
    """A variant trained with a seed."""

    variant: str
    seed: int

    def __str__(self) -> str:
        return f"{self.variant} seed {self.seed}"


class Job(NamedTuple):
    """A run's work: a directory that holds all it needs, and a command that anyone can type."""

    run: Run
    directory: Path
    """absolute"""

    @property
    def root(self) -> Path:
        """The comparison's directory."""
        return self.directory.parents[len(Path(self.run.variant).parts)]

    @property
    def command(self) -> list[str]:
        """Trains the run to its end. Exit status 0 done, 1 failed, 130 or 143 stopped after a checkpoint."""
        return [*python(), "-m", "experiments", "train", str(self.directory)]


def python() -> list[str]:
    """The command of a Python that finds this package.

    If it is not that of the working directory, Python must not look there: it looks there first, and would take a
    folder of the same name for the package.
    """
    return [sys.executable] if os.path.samefile(Path(__file__).parents[1], os.curdir) else [sys.executable, "-P"]


class Needs(NamedTuple):
    """What a run takes of a machine: ``--resources cpu=2,gpu=0.25,memory=8``."""

    cpu: float = 1
    """cores"""
    gpu: float = 0
    """GPUs, or a part of one"""
    memory: float | None = None
    """GiB"""
    minutes: float | None = None
    """the longest that it may take at a time, where there is such a limit"""
    nproc: int = 1
    """processes that train it, each with a GPU of its own"""


ONE_CORE = Needs()
RESERVED = ("cpu", "gpu", "memory", "minutes")
"""what --resources can name"""


def parse_needs(text: str | None, default: Needs) -> Needs:
    """The needs in a text such as "cpu=2,gpu=0.25"; what it does not name is the default's.

    Raises ValueError if it is not such a text.
    """
    found: dict[str, float] = {}
    for part in [] if text is None else text.split(","):
        name, _, value = part.partition("=")
        if name not in RESERVED:
            raise ValueError(f"--resources has {name!r}; {choices(name, list(RESERVED))}")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = math.nan
        if not 0 <= found[name] < math.inf or (name != "gpu" and found[name] == 0):
            raise ValueError(f"--resources has {part!r}; give a positive number, as {name}=2")
    return default._replace(**found)  # type: ignore[arg-type]
