"""Runs on this machine, several at a time, forked from one parent that imports what they need once.

The fork server of multiprocessing needs a socket with a short path, cannot be started by a daemonic process, and gives
what it starts later the environment of the first. This parent, ``python -m experiments.run.local``, is told what to do,
and tells how runs ended, line by line.
"""

import faulthandler
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import traceback
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.objects import ONE_CORE, Job, Needs, python
from experiments.records.files import open_to_append
from experiments.run.loop import UNRECORDED
from experiments.run.signals import stop_signals_are_blocked

FORKS = sys.platform.startswith("linux")
"""elsewhere a process that has imported PyTorch cannot safely be forked"""
PRELOADED = ["experiments.train.loop", "experiments.train.chosen_objective", "experiments.data.registry"]
PRELOADED += ["experiments.run.job", "torch._dynamo"]  # which PyTorch's optimizers import in their first step
"""imported once for all runs"""
LOOK_SECONDS = 0.05


class Local:
    """Processes of this machine; where it has several GPUs, each run has its own."""

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
                [*python(), "-m", "experiments.run.local"],
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


def serve() -> None:
    """Do what the standard input says until it ends, which its sender's end does too; then let the runs stop."""
    for module in PRELOADED:
        import_module(module)
    running, rest, is_open = dict[int, int](), b"", True
    while is_open or running:
        if is_open and select.select([0], [], [], LOOK_SECONDS)[0]:
            came = os.read(0, 2**16)
            *lines, rest = (rest + came).split(b"\n")
            for line in lines:
                _do(json.loads(line), running)
            if not came:
                is_open = False
                for process in running.values():
                    os.kill(process, signal.SIGTERM)
        for number, process in list(running.items()):
            ended, status = os.waitpid(process, 0 if not is_open else os.WNOHANG)
            if ended:
                del running[number]
                if is_open:
                    print(number, os.waitstatus_to_exitcode(status), flush=True)


def _do(asked: dict[str, Any], running: dict[int, int]) -> None:
    number = asked["number"]
    if "signal" in asked:
        if number in running:
            os.kill(running[number], asked["signal"])
    elif process := os.fork():
        running[number] = process
    else:
        status = 1
        try:
            status = _train(Path(asked["directory"]), asked["variables"], asked["is_forked"])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)


def _train(directory: Path, variables: dict[str, str], is_forked: bool) -> int:
    from experiments.run.job import train_directory

    os.environ.update(variables)
    try:
        log = open_to_append(directory / "log.txt")
    except OSError:
        return UNRECORDED
    for stream, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log.fileno()), (2, log.fileno())):
        os.dup2(descriptor, stream)
    if not is_forked:
        command = [*python(), "-m", "experiments", "train", str(directory)]
        os.execv(command[0], command)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # it writes to its log where it hangs
    return train_directory(directory)


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # nobody is told any more
        serve()
