"""What each step of ``.ci/gpu`` has: a file of records that outlasts its process, a time by which it ends, and a way of
timing calls: in turn, round by round, as the speed study does; on a CPU once, for a rehearsal.
"""

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from experiments.studies.speed import benchmark
from experiments.studies.speed.benchmark import Call

T = TypeVar("T")

PROOFS = 8
"""steps that share what is to be proved, as each compiles on one core"""
COMPILED_TOGETHER = 6
"""steps that share the models to be compiled"""
SAMPLE_SECONDS = 0.005
ROUNDS, FEWEST_ROUNDS = 15, 3
SECONDS = 1.0
"""after these no further round begins, but the fewest"""


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
        return read(self.records, self.name)

    def is_done(self, case: dict[str, Any]) -> bool:
        """Whether there is a result of a case."""
        return any(record.get("case") == case and "part" not in record for record in self.written())

    def attempt(self, case: dict[str, Any], part: str, call: Callable[[], T]) -> T | None:
        """What ``call`` returns; or None, where a record says why: it raised, or ended a process before this one."""
        place = {"case": case, "part": part}
        if any("failure" in record and record.items() >= place.items() for record in self.written()):
            return None
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

    def compare(self, case: dict[str, Any], builders: Mapping[str, Callable[[], Call]], ours: str, **more: Any) -> None:
        """Times the calls that are built; puts down milliseconds, how many bytes memory rises in a call, and how many
        times as fast as each other ours is: the median over rounds of what is compared within each.
        """
        calls, memory = dict[str, Call](), dict[str, int | None]()

        def build(name: str) -> None:
            call = builders[name]()
            memory[name] = warm_up(call, self.device)
            calls[name] = call

        for name in builders:
            self.attempt(case, name, partial(build, name))
        if self.only_compiles or not calls:
            return
        times = self.attempt(case, "all in turn", partial(time_in_turn, calls, self.device))
        if times is None:
            return
        ms = {name: median(values) for name, values in times.items()}
        speedup = {
            name: median(other / own for other, own in zip(values, times[ours], strict=True))
            for name, values in times.items()
            if ours in times and name != ours
        }
        rounds = len(next(iter(times.values())))
        self.write(case=case, ms=ms, rounds=rounds, speedup=speedup, memory=memory, **more)


def warm_up(call: Call, device: torch.device) -> int | None:
    """Call it until all is compiled; returns how far memory then rises in a call, in bytes, None on a CPU."""
    if device.type != "cuda":
        call()
        return None
    for _ in range(3):
        call()
    return benchmark.peak_memory(call, device)[0]


def time_in_turn(calls: Mapping[str, Call], device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of a call of each, which are warm, a value for each round. RuntimeError: one of them raised."""
    rounds, fewest = (ROUNDS, FEWEST_ROUNDS) if device.type == "cuda" else (1, 1)
    threads, sizes = torch.get_num_threads(), {"sample_seconds": SAMPLE_SECONDS, "budget": SECONDS}
    found, failures = benchmark.time_in_turn(calls, threads=threads, rounds=rounds, fewest_rounds=fewest, **sizes)
    if failures:
        raise RuntimeError("; ".join(f"{name}: {reason}" for name, reason in failures.items()))
    return {name: [1e3 * value for value in values] for name, values in found.items()}


def append(records: Path, name: str, **fields: Any) -> None:
    """A record of a step. One write, so that lines of several processes do not mix."""
    with records.open("ab", buffering=0) as file:
        file.write(json.dumps({"step": name} | fields).encode() + b"\n")


def read(records: Path, name: str = "") -> list[dict[str, Any]]:
    """The records of all steps, or of one; the last line may be cut off."""
    found = []
    for line in records.read_text().splitlines() if records.exists() else []:
        with suppress(ValueError):
            found.append(json.loads(line))
    return [record for record in found if name in ("", record["step"])]
