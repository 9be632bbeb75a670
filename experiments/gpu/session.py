"""Runs steps, each in processes of its own, and writes what they found as it comes."""

import io
import os
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from experiments.gpu.results import sections, targets
from experiments.gpu.step import append, read
from experiments.records.files import write_atomically, write_json

ROOT = Path(__file__).parents[2]
ARCHIVE = "runs.tar.gz"
KEPT = ".json", ".jsonl", ".csv"
"""files of runs that are archived: their records, not their weights"""
DONE, FAILED, STOPPED, LEFT_OUT = "done", "failed", "stopped at its limit", "left out"
ENDING = 3.0
"""seconds for what comes after the last step"""
BEGINNING = 10.0
"""seconds until a command has imported what it needs"""
BETWEEN = 10.0
"""seconds after which all is written again"""
SHORTEST = 2.0
"""seconds; a step that would have less is left out"""


class Planned(NamedTuple):
    """A step, which takes at most ``share`` of the whole time.

    In its command {ends} is when that is over, by time.monotonic, and {seconds} how long it has once it has begun.
    """

    name: str
    share: float
    command: Sequence[str]
    environment: Mapping[str, str] = {}


class Session:
    """The steps of one call, and where their results go."""

    def __init__(self, results: Path, seconds: float, about: Mapping[str, Any] = {}) -> None:
        self.results, self.seconds, self.about = results, seconds, about
        self.ends = time.monotonic() + seconds - ENDING
        self.records, self.logs = results / "records.jsonl", results / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.runs = Path(tempfile.mkdtemp(prefix="gpu-")) / "runs"
        self.outcomes: list[dict[str, Any]] = []

    def run(self, group: Sequence[Planned]) -> None:
        """Steps beside each other, until each has ended or its time is over."""
        running = [Running(each, self) for each in group if self.ends - time.monotonic() > SHORTEST]
        self.outcomes += [{"step": each.name, "outcome": LEFT_OUT} for each in group[len(running) :]]
        written = time.monotonic()
        try:
            while any([each.goes_on() for each in running]):
                time.sleep(0.05)
                if time.monotonic() - written > BETWEEN:
                    self.write()
                    written = time.monotonic()
        finally:
            self.outcomes += [each.stop() for each in running]
            self.write()

    def summary(self) -> dict[str, Any]:
        """All that is on record by now."""
        found = sections(read(self.records))
        return {"about": self.about, "steps": self.outcomes, "targets": targets(found), **found}

    def write(self) -> None:
        """The summary, and an archive of the records of all runs."""
        write_json(self.results / "gpu.json", self.summary())
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for path in sorted(self.runs.rglob("*")):
                if path.suffix in KEPT and "checkpoint" not in path.parts:
                    with suppress(FileNotFoundError):  # what a run replaces meanwhile
                        archive.add(path, path.relative_to(self.runs))
        write_atomically(self.results / ARCHIVE, packed.getvalue())

    def tell(self) -> int:
        """Prints how each step and each target came out. Returns 1 if a step failed."""
        for outcome in self.outcomes:
            print(*outcome.values())
        for target in self.summary()["targets"]:
            print(f"{target['verdict']:12} {target['measured'] or '':<22} {target['target']}")
        return int(any(outcome["outcome"] == FAILED for outcome in self.outcomes))


class Running:
    """A step's process, and those that go on after one that died."""

    def __init__(self, planned: Planned, session: Session) -> None:
        self.planned, self.session, self.begun = planned, session, time.monotonic()
        self.ends = min(session.ends, self.begun + planned.share * session.seconds)
        self.start()

    def start(self) -> None:
        self.known = len(read(self.session.records, self.planned.name))
        seconds = max(1, int(self.ends - time.monotonic() - BEGINNING))
        with (self.session.logs / f"{self.planned.name}.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [word.format(ends=self.ends, seconds=seconds) for word in self.planned.command],
                cwd=ROOT, env=os.environ | dict(self.planned.environment), stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def goes_on(self) -> bool:
        """Whether there is something to wait for. After a process that died of what it put down another one goes on."""
        status = self.process.poll()
        if time.monotonic() > self.ends or status == 0:
            return False
        if status is None:
            return True
        written = read(self.session.records, self.planned.name)
        # Another one would die at the same place, or do again what has ended.
        if len(written) == self.known or not {"begun", "failure"} & written[-1].keys():
            return False
        if "begun" in written[-1]:
            place = {name: written[-1][name] for name in ("case", "part")}
            append(self.session.records, self.planned.name, **place, failure=f"its process ended with status {status}")
        self.start()
        return True

    def stop(self) -> dict[str, Any]:
        """Ends it with all that it started; returns how it went."""
        is_late = self.process.poll() is None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait()
        outcome = STOPPED if is_late else FAILED if status else DONE
        seconds = round(time.monotonic() - self.begun, 1)
        return {"step": self.planned.name, "outcome": outcome, "status": status, "seconds": seconds}
