"""What each step of ``.ci/gpu`` has: a file of records that outlasts its process, and a time by which it ends."""

import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")

PROOFS = 8
"""steps that share what is to be proved, as each compiles on one core"""
COMPILED_TOGETHER = 6
"""steps that share the models to be compiled"""


@dataclass(frozen=True)
class Step:
    """One process of a step."""

    name: str
    records: Path
    """of all steps: a JSON object a line, with the step's name"""
    ends: float
    """of time.monotonic"""
    rehearses: bool
    """at toy sizes on a CPU"""

    @classmethod
    def of_command(cls) -> "Step":
        """The step that the command line names."""
        name, records, ends, mode = sys.argv[1:]
        return cls(name, Path(records), float(ends), mode == "rehearses")

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.rehearses else "cuda")

    @property
    def only_compiles(self) -> bool:
        """Beside steps in which nothing is timed: compilers keep what they made for the processes to come."""
        return self.name.startswith("compile")

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.ends

    def write(self, **fields: Any) -> None:
        """Put down what was found, at once."""
        append(self.records, self.name, **fields)

    def written(self) -> list[dict[str, Any]]:
        """What this step has put down, in earlier processes too."""
        return [record for record in read(self.records) if record["step"] == self.name]

    def is_done(self, case: dict[str, Any]) -> bool:
        """Whether there is a result of a case."""
        return any(record.get("case") == case and "part" not in record for record in self.written())

    def has_failed(self, case: dict[str, Any], part: str) -> bool:
        """Whether a part of a case raised, or ended a process."""
        place = {"case": case, "part": part}.items()
        return any("failure" in record and record.items() >= place for record in self.written())

    def attempt(self, case: dict[str, Any], part: str, call: Callable[[], T]) -> T | None:
        """What ``call`` returns; or None, where a record says why: it raised, or ended a process before this one."""
        if self.has_failed(case, part):
            return None
        place = {"case": case, "part": part}
        self.write(**place, begun=True)
        try:
            return call()
        except Exception as error:
            self.write(**place, failure=" ".join(f"{type(error).__name__}: {error}".split())[:300])
        self._recover()
        return None

    def _recover(self) -> None:
        """Ends the process, for another to go on, where the GPU takes nothing more from it: after an illegal access."""
        if self.device.type == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                raise SystemExit(f"the GPU takes nothing more from this process: {error}") from None
            gc.collect()
            torch.cuda.empty_cache()


def append(records: Path, name: str, **fields: Any) -> None:
    """A record of a step. One write, so that lines of several processes do not mix."""
    with records.open("ab", buffering=0) as file:
        file.write(json.dumps({"step": name} | fields).encode() + b"\n")


def read(records: Path) -> list[dict[str, Any]]:
    """All records; the last line may be cut off."""
    lines = records.read_text().splitlines() if records.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
