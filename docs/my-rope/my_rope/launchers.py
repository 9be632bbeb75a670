"""A launcher: every run's own command, one after the other."""

import subprocess
from collections.abc import Sequence

from experiments.objects import Job, Needs


class OneByOne:
    """``workers``, the runs at a time, and ``needs``, what a run takes, come from the command."""

    room = 1

    def __init__(self, *, workers: int | None, needs: Needs) -> None: ...

    def start(self, jobs: Sequence[Job]) -> list["Command"]:
        return [Command(subprocess.Popen(job.command)) for job in jobs]


class Command:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def poll(self) -> int | str | None:
        """The exit status or, without one, why; None until it has ended."""
        return self.process.poll()

    def stop(self, *, now: bool) -> None:
        """Let it stop after a checkpoint, or kill it."""
        self.process.kill() if now else self.process.terminate()
