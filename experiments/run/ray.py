"""Runs as tasks of a Ray cluster, which queues them and begins one again whose machine is lost.

All machines have to see the comparison's directory.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from experiments.console import install_command
from experiments.objects import ONE_CORE, Job, Needs
from experiments.run.signals import stop_signals_are_collected

RETRIES = 3
"""times that a run is begun again because its machine was lost"""
OF_TRACKERS = "WANDB_MODE WANDB_DIR WANDB_PROJECT WANDB_ENTITY WANDB_BASE_URL TRACKIO_DIR".split()
"""variables; no keys, which Ray would show to everybody"""
NOT_SEEN = "the machine that it was sent to does not see its directory; Ray needs one that all machines see"


class Ray:
    """Tasks of a Ray cluster: that of the variable RAY_ADDRESS, or the one that this machine is part of."""

    elsewhere = True

    def __init__(self, *, workers: int | None = None, needs: Needs = ONE_CORE) -> None:
        """Raises ValueError if Ray is not installed, or a need is not one that it knows."""
        if find_spec("ray") is None:
            raise ValueError(f"--launcher ray needs Ray; give {install_command('ray')}, or another launcher")
        if needs.minutes is not None:
            raise ValueError("--resources has minutes, and Ray gives a run all the time it needs; leave them out")
        self.room = workers or 10_000
        self._needs = {"CPU": needs.cpu, "GPU": needs.gpu, "memory": int((needs.memory or 0) * 2**30)}

    def start(self, jobs: Sequence[Job]) -> "list[_Task]":
        """As Launcher.start says. Raises ValueError if no cluster answers, or no machine of it has room for a run."""
        import ray

        if not ray.is_initialized():
            _connect()
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(all(machine.get(name, 0) >= need for name, need in self._needs.items()) for machine in machines):
            told = ", ".join(f"{name} {need:g}" for name, need in self._needs.items() if need)
            raise ValueError(f"no machine of the Ray cluster has {told} for a run; change --resources")
        variables = {
            name: value for name, value in os.environ.items() if name.startswith("LINEAR_ROPE_") or name in OF_TRACKERS
        }
        train = ray.remote(
            runtime_env={"env_vars": variables},
            num_cpus=self._needs["CPU"],
            num_gpus=self._needs["GPU"],
            memory=self._needs["memory"] or None,
            max_retries=RETRIES,
        )(train_there)
        # Each machine has a Python of its own.
        return [
            _Task(train.options(name=str(job.run)).remote(job.command[1:], str(job.directory), os.getcwd()))
            for job in jobs
        ]


def _connect() -> None:
    import ray

    address = os.environ.get("RAY_ADDRESS") or "auto"
    with stop_signals_are_collected():  # Ray handles them in its own way from then on
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = f"RAY_ADDRESS is {address!r}: {_first_line(error)}"
            raise ValueError(
                f"no Ray cluster answers ({reason}); give the command on one of its machines, or `ray start --head`"
            ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def train_there(command: list[str], directory: str, place: str) -> int | str:
    """What a task does: the run's command, which stops as the task is cancelled."""
    if not os.path.exists(os.path.join(directory, "job.json")):
        return NOT_SEEN
    here = place if os.path.isdir(place) else None
    with open(os.path.join(directory, "log.txt"), "ab") as log:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=here, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    while True:
        try:
            while process.poll() is None:  # wait() would not come back when the task is cancelled
                time.sleep(0.2)
            return process.returncode
        except KeyboardInterrupt:
            process.terminate()


class _Task:
    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def poll(self) -> int | str | None:
        import ray

        try:
            if not ray.wait([self._reference], timeout=0)[0]:
                return None
            ended: int | str = ray.get(self._reference)
            return ended
        except ray.exceptions.RayError as error:
            return f"its machine or its task was lost ({type(error).__name__}: {_first_line(error)})"

    def stop(self, *, now: bool) -> None:
        import ray

        ray.cancel(self._reference, force=now)
