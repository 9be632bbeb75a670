"""Runs on this machine, several at a time: each in a process of its own, where there are several with its own GPUs."""

import itertools
import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

from experiments.objects import ONE_CORE, Job, Needs, python
from experiments.run.signals import stop_signals_are_blocked

FORKS = sys.platform.startswith("linux")
"""elsewhere a process that has imported PyTorch cannot safely be forked"""


class Local:
    """Processes of this machine, whose parent (forks.py) is told what to do, and tells how they ended."""

    def __init__(self, *, workers: int | None = 1, needs: Needs = ONE_CORE) -> None:
        self.room, self._nproc = workers or 1, needs.nproc
        self._numbers = itertools.count()
        self._places, self._ended = dict[int, int](), dict[int, int | str]()
        self._rest = b""

    def start(self, jobs: Sequence[Job]) -> "list[_Process]":
        """As Launcher.start says."""
        return [self._start(job) for job in jobs]

    def _start(self, job: Job) -> "_Process":
        number, place = next(self._numbers), min({*range(self.room)} - {*self._places.values()}, default=0)
        self._places[number] = place
        self.tell(number=number, directory=str(job.directory), variables=_own_gpus(place, self._nproc), is_forked=FORKS)
        return _Process(self, number)

    @cached_property
    def _parent(self) -> "subprocess.Popen[bytes]":
        # A terminal sends its signals to all: these wait until a run can heed them.
        with stop_signals_are_blocked():
            parent = subprocess.Popen(
                [*python(), "-m", "experiments.run.forks"],
                # The modules that this process finds: a notebook's plug-in, say.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        assert parent.stdout is not None
        os.set_blocking(parent.stdout.fileno(), False)
        weakref.finalize(self, _end, parent)
        return parent

    def tell(self, **what: object) -> None:
        """Let the parent do something."""
        pipe = self._parent.stdin
        assert pipe is not None
        with suppress(BrokenPipeError):  # how it ended is seen when it is asked
            pipe.write(json.dumps(what).encode() + b"\n")
            pipe.flush()

    def status(self, number: int) -> int | str | None:
        """How the run of a number ended, if it did."""
        pipe = self._parent.stdout
        assert pipe is not None
        while came := pipe.read(2**16):
            *lines, self._rest = (self._rest + came).split(b"\n")
            self._ended |= {int(each): int(status) for each, _, status in (line.partition(b" ") for line in lines)}
        if number not in self._ended and self._parent.poll() is not None:
            self._ended[number] = "the process that it was forked from ended"
        if number in self._ended:
            self._places.pop(number, None)
        return self._ended.get(number)


class _Process:
    """A run's process."""

    def __init__(self, local: Local, number: int) -> None:
        self._local, self._number = local, number

    def poll(self) -> int | str | None:
        return self._local.status(self._number)

    def stop(self, *, now: bool) -> None:
        for each in (signal.SIGUSR1, signal.SIGKILL) if now else (signal.SIGTERM,):
            self._local.tell(number=self._number, signal=each)


def _end(parent: "subprocess.Popen[bytes]") -> None:
    with suppress(BrokenPipeError), parent:  # its pipes are closed, which ends it
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
