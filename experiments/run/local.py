"""Runs on this machine, several at a time: each in a process of its own, where there are several with its own GPUs."""

import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

from experiments.objects import ONE_CORE, Job, Needs, python
from experiments.run.signals import stop_signals_are_blocked

FORKS = sys.platform.startswith("linux")
"""elsewhere a process that has imported PyTorch cannot safely be forked"""


class Local:
    """Processes of this machine, forked from one that has imported PyTorch (forks.py), or else of its own each."""

    def __init__(self, *, workers: int | None = 1, needs: Needs = ONE_CORE) -> None:
        self.room, self._nproc = workers or 1, needs.nproc
        self._server: subprocess.Popen[bytes] | None = None
        self._running, self._ended = dict[int, int](), dict[int, int | str]()
        self._started, self._rest = 0, b""

    def start(self, jobs: Sequence[Job]) -> "list[_Forked | _Spawned]":
        """As Launcher.start says."""
        return [self._start(job) for job in jobs]

    def _start(self, job: Job) -> "_Forked | _Spawned":
        self._started += 1
        number, place = self._started, min({*range(self.room)} - {*self._running.values()}, default=0)
        self._running[number] = place
        variables = _own_gpus(place, self._nproc)
        if not FORKS:
            return _Spawned(job, variables, lambda: self._running.pop(number, None))
        if self._server is None:
            # A terminal sends its signals to all: these wait until a run can heed them.
            with stop_signals_are_blocked():
                self._server = subprocess.Popen(
                    [*python(), "-m", "experiments.run.forks"],
                    env=os.environ | _same_modules(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            assert self._server.stdout is not None
            os.set_blocking(self._server.stdout.fileno(), False)
            weakref.finalize(self, _end, self._server)
        self.tell(number=number, directory=str(job.directory), variables=variables)
        return _Forked(self, number)

    def tell(self, **what: object) -> None:
        """Let the server do something."""
        assert self._server is not None
        assert self._server.stdin is not None
        with suppress(BrokenPipeError):  # how it ended is seen when it is asked
            self._server.stdin.write(json.dumps(what).encode() + b"\n")
            self._server.stdin.flush()

    def status(self, number: int) -> int | str | None:
        """How the run of a number ended, if it did."""
        assert self._server is not None
        assert self._server.stdout is not None
        while came := self._server.stdout.read(2**16):
            *lines, self._rest = (self._rest + came).split(b"\n")
            self._ended |= {int(each): int(status) for each, _, status in (line.partition(b" ") for line in lines)}
        if number not in self._ended and self._server.poll() is not None:
            self._ended[number] = "the process that it was forked from ended"
        if number in self._ended:
            self._running.pop(number, None)
        return self._ended.get(number)


class _Forked:
    """A run's process."""

    def __init__(self, local: Local, number: int) -> None:
        self._local, self._number = local, number

    def poll(self) -> int | str | None:
        return self._local.status(self._number)

    def stop(self, *, now: bool) -> None:
        for each in (signal.SIGUSR1, signal.SIGKILL) if now else (signal.SIGTERM,):
            self._local.tell(number=self._number, signal=each)


class _Spawned:
    """A run's process that runs its command."""

    def __init__(self, job: Job, variables: dict[str, str], ended: Callable[[], object]) -> None:
        with open(job.directory / "log.txt", "ab") as log, stop_signals_are_blocked():
            self._process = subprocess.Popen(
                job.command,
                env=os.environ | _same_modules() | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._ended = ended

    def poll(self) -> int | None:
        status = self._process.poll()
        if status is not None:
            self._ended()
        return status

    def stop(self, *, now: bool) -> None:
        (self._process.kill if now else self._process.terminate)()


def _same_modules() -> dict[str, str]:
    """What makes a process find the modules that this one finds: a notebook's plug-in, say."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _end(server: subprocess.Popen[bytes]) -> None:
    with suppress(BrokenPipeError), server:  # its pipes are closed, which ends it
        pass


def _own_gpus(place: int, count: int) -> dict[str, str]:
    """One for each of a run's processes, others in every place; where there are too few, they are shared in turn."""
    torch = sys.modules.get("torch")
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [*map(str, range(torch.cuda.device_count() if torch else 0))] if named is None else named.split(",")
    if len(gpus) < 2:
        return {}
    own = [gpus[(place * count + each) % len(gpus)] for each in range(min(count, len(gpus)))]
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)}
