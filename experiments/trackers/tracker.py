"""Trackers show the numbers of a run elsewhere (TensorBoard, say) while it trains; metrics.jsonl stays the truth.

A tracker is told a row once that row is on the disk, and never again: a run that goes on tells only what is new.
"""

import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from experiments.records.files import read_file, write_atomically

LONGEST_PROJECT = 128


class TrackedRun(NamedTuple):
    """What a tracker is made with."""

    comparison: Path
    """absolute directory of the comparison"""
    directory: Path
    """the run's own, inside of it"""
    variant: str
    seed: int
    config: Mapping[str, Any]
    """what the run is trained with"""
    origin: str
    """directory of the comparison where its command was given; ``comparison`` is another if it is a copy elsewhere"""

    @property
    def is_copy(self) -> bool:
        """Whether of the comparison only this run's directory is here, and is gathered."""
        return str(self.comparison) != self.origin

    @property
    def project(self) -> str:
        """The comparison's name as services take it: ASCII letters, digits and . _ -, at most 128 of them."""
        return re.sub(r"[^\w.-]", "-", self.comparison.name, flags=re.ASCII)[:LONGEST_PROJECT]

    def id(self) -> str:
        """Made once and kept in the run's directory, with which it moves: a run that goes on, here or in a copy, has it
        still, and one of another comparison never has, were its name and its place the same.
        """
        path = self.directory / "tracked"
        if not path.exists():
            write_atomically(path, uuid.uuid4().hex[:16])
        return read_file(path, "remove it").decode()


class Tracker(Protocol):
    """Made with a TrackedRun, which may have been tracked before. What it raises ends it, and not the run.

    A class may name the module it cannot do without in ``needs``.
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take metrics, each named ``split/name``, after so many optimiser steps; steps may come out of order."""
        ...

    def finish(self) -> None:
        """The run goes no further in this process."""
        ...
