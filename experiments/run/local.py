"""Runs on this machine, several at a time. Each is forked from a worker that has imported what runs need.

The fork server of multiprocessing needs a socket with a short path, cannot be started by a daemonic process, and gives
what it starts later the environment of the first. A worker is ``python -m experiments.run.local``: it reads the
directories of runs, one after the other, and tells their exit statuses. The end of what it reads stops its run.
"""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import traceback
import weakref
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import psutil

from experiments.objects import ONE_CORE, Job, Needs, python
from experiments.records.files import open_to_append
from experiments.run.loop import UNRECORDED
from experiments.run.signals import at_the_end_of_input, stop_signals_are_blocked

IMPORTED = ["experiments.train.loop", "experiments.train.chosen_objective", "experiments.data.registry"]
IMPORTED += ["experiments.run.job", "torch._dynamo"]  # which PyTorch's optimizers import in their first step
"""by a worker, once for all of its runs"""
if not sys.platform.startswith("linux"):  # a process that has imported PyTorch cannot safely be forked
    IMPORTED = []


class Local:
    """Processes of this machine; where it has several GPUs, each run has its own."""

    def __init__(self, *, workers: int | None = 1, needs: Needs = ONE_CORE) -> None:
        self.room, self._nproc = workers or 1, needs.nproc
        self._workers = dict[int, _Worker]()

    def start(self, jobs: Sequence[Job]) -> "list[_Worker]":
        """As Launcher.start says."""
        return [self._start(job) for job in jobs]

    def _start(self, job: Job) -> "_Worker":
        busy = {place for place, worker in self._workers.items() if worker.is_busy}
        place = min({*range(self.room)} - busy)
        if place not in self._workers or self._workers[place].has_ended:
            self._workers[place] = _Worker(own_gpus(place, self._nproc))
        self._workers[place].train(job)
        return self._workers[place]


class _Worker:
    """A process that trains a run at a time."""

    def __init__(self, variables: dict[str, str]) -> None:
        # The modules that this process finds: a notebook's plug-in, say.
        variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | variables
        command = [*python(), "-m", "experiments.run.local", *IMPORTED]
        with stop_signals_are_blocked():  # a terminal sends its signals to all: these wait until a run can heed them
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, env=variables)
        assert self._process.stdin
        assert self._process.stdout
        self._directories, self._statuses = self._process.stdin, self._process.stdout
        os.set_blocking(self._statuses.fileno(), False)
        self.is_busy = False
        weakref.finalize(self, self._process.__exit__, None, None, None)  # its pipes are closed, which ends it

    @property
    def has_ended(self) -> bool:
        """Whether it takes no more runs."""
        return self._directories.closed or self._process.poll() is not None

    def train(self, job: Job) -> None:
        self.is_busy = True
        with suppress(BrokenPipeError):  # how it ended is seen when it is asked
            self._directories.write(json.dumps(str(job.directory)).encode() + b"\n")

    def poll(self) -> int | None:
        came, ended = self._statuses.read(100), self._process.poll()
        if not came and ended is not None:  # after a last status, perhaps
            came = self._statuses.read(100)
        status = int(came) if came else ended
        self.is_busy = status is None
        return status

    def stop(self, *, now: bool) -> None:
        self._directories.close()
        if now:
            with suppress(psutil.NoSuchProcess):
                trained = psutil.Process(self._process.pid).children()
                for process in trained:
                    process.send_signal(signal.SIGUSR1)
                for process in trained or [self._process]:
                    process.kill()


def own_gpus(place: int, count: int) -> dict[str, str]:
    """One for each of a run's processes, others in every place; where there are too few, they are shared in turn."""
    torch = sys.modules.get("torch")
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [*map(str, range(torch.cuda.device_count() if torch else 0))] if named is None else named.split(",")
    if len(gpus) < 2:
        return {}
    own = [gpus[(place * count + each) % len(gpus)] for each in range(min(count, len(gpus)))]
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)}


def serve(modules: list[str]) -> None:
    """Train each run whose directory comes on the standard input, in a process of its own; print how that ended."""
    for module in modules:
        import_module(module)
    for line in iter(sys.stdin.readline, ""):
        process = os.fork()
        if not process:
            status = 1
            try:
                status = _train(Path(json.loads(line)))
            except BaseException:
                traceback.print_exc()
            finally:
                with suppress(OSError):
                    sys.stdout.flush()
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


def _train(directory: Path) -> int:
    try:
        log = open_to_append(directory / "log.txt")
    except OSError:
        return UNRECORDED
    for descriptor in (1, 2):
        os.dup2(log.fileno(), descriptor)
    at_the_end_of_input(lambda: os.kill(os.getpid(), signal.SIGTERM))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # it writes to its log where it hangs
    from experiments.run.job import train_directory

    return train_directory(directory)


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # nobody is told any more
        serve(sys.argv[1:])
