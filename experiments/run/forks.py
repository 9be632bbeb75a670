"""The parent of runs' processes, which imports what they need once: ``python -m experiments.run.forks``.

The fork server of multiprocessing needs a socket with a short path, cannot be started by a daemonic process, and gives
what it starts later the environment of the first. This one is told what to do, and tells how runs ended, line by line.
"""

import faulthandler
import json
import os
import select
import signal
import sys
import traceback
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.objects import python
from experiments.records.files import open_to_append
from experiments.run.loop import UNRECORDED

PRELOADED = ["experiments.train.loop", "experiments.train.chosen_objective", "experiments.data.registry"]
PRELOADED += ["experiments.run.job", "torch._dynamo"]  # which PyTorch's optimizers import in their first step
"""imported once for all runs"""
LOOK_SECONDS = 0.05


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
    print(f"{datetime.now(UTC).isoformat(timespec='seconds')} process {os.getpid()}", flush=True)
    return train_directory(directory)


if __name__ == "__main__":
    try:
        serve()
    except BrokenPipeError:  # nobody is told any more
        sys.exit(1)
