"""Runs on a Ray cluster: each is a task that trains in a process of its own (local.py), on whatever machine has room.

A machine that sees the comparison's directory trains in it. To another one the run's files are sent, and what it wrote
comes back after every checkpoint and at the end. A run whose machine or process is lost begins again elsewhere, from
the newest checkpoint that the comparison's directory has.
"""

import logging
import os
import signal
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiments.console import install_command
from experiments.launch.gathering import Files, Gatherer, files_of, store
from experiments.launch.launcher import Advanced, Ended, Event, Job, Started
from experiments.launch.local import Local
from experiments.launch.resources import ONE_CORE, Resources
from experiments.launch.signals import Received, Stopped, stop_signals_are_collected
from experiments.records.files import write_atomically
from experiments.records.record import run_directory, run_status

RETRIES = 3
"""times in a row, with no step between, that a run is begun again because its machine or process was lost"""
TOLD_SECONDS = 1.0
"""between two messages of a run's progress"""
OF_TRACKERS = "WANDB_MODE WANDB_DIR WANDB_PROJECT WANDB_ENTITY WANDB_BASE_URL TRACKIO_DIR".split()
"""variables; no keys, which Ray would show to everybody"""
LOOK_SECONDS = 1.0
"""between two looks of a run at whether it is to stop, and of the driver at how many runs the cluster has room for"""


@dataclass(frozen=True)
class _Elsewhere:
    """Said by a task that does not see the comparison's directory, and was not sent the run's files."""


@dataclass(frozen=True)
class _Lost:
    """A task is over, and did not say how its run ended."""

    reason: str
    again: bool = True
    """whether another try may end otherwise"""


@dataclass
class _Running:
    job: Job
    elsewhere: bool = False
    """whether its files are to be sent"""
    started: bool = False
    losses: int = 0


class _Stop:
    """An actor that tells the tasks when to stop."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


class Ray:
    """Tasks of a Ray cluster: that of the variable RAY_ADDRESS, or the one that this machine is part of."""

    elsewhere = True

    def __init__(
        self, *, workers: int = 2**20, run_timeout: float = float("inf"), resources: Resources = ONE_CORE
    ) -> None:
        """Raises ValueError if Ray is not installed, or a resource is not one that it knows."""
        if find_spec("ray") is None:
            raise ValueError(f"--launcher ray needs Ray; give {install_command('ray')}, or another launcher")
        if resources.minutes is not None:
            raise ValueError("--resources has minutes, and Ray gives a run all the time it needs; leave them out")
        self._workers, self._run_timeout = workers, run_timeout
        memory = None if resources.memory is None else int(resources.memory * 2**30)
        self._options: dict[str, Any] = {"num_cpus": resources.cpu, "num_gpus": resources.gpu, "memory": memory}
        self._needs = {"CPU": resources.cpu, "GPU": resources.gpu, "memory": memory or 0}

    def run(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """As Launcher.run says.

        Raises ValueError if there is no cluster, or none of its machines has room for a run.
        """
        import ray

        with _connected(), _token(jobs[0].root) as token, stop_signals_are_collected() as stop:
            room = looked = 0.0
            stopper = ray.remote(_Stop).options(num_cpus=0, scheduling_strategy=_on_this_machine()).remote()
            options = self._options | {"num_returns": "streaming", "max_retries": 0}
            train = ray.remote(runtime_env={"env_vars": _own_variables()}, **options)(_train)
            waiting, running = deque(map(_Running, jobs)), dict[Any, _Running]()
            while waiting or running:
                if time.monotonic() - looked > LOOK_SECONDS:
                    room, looked = min(self._workers, self._room()), time.monotonic()
                    if room == 0 and not running:
                        needs = ", ".join(f"{name} {need:g}" for name, need in self._needs.items() if need)
                        raise ValueError(f"no machine of the Ray cluster has {needs} for a run; change --resources")
                # No more than there is room for: Ray's own queue would be looked through for every event.
                while waiting and len(running) < room and not stop.numbers:
                    run = waiting.popleft()
                    try:
                        files = files_of(run.job) if run.elsewhere else None
                    except (OSError, ValueError) as error:
                        yield Ended(run.job.run, "failed", f"its files could not be sent: {error}")
                        continue
                    task = train.options(name=str(run.job.run)).remote(
                        run.job, token, files, self._run_timeout, stopper
                    )
                    running[task] = run
                for task in _ready(running):
                    run, message = running[task], _next(task)
                    if isinstance(message, Files):
                        try:
                            store(message, run.job.root, run.job.directory)
                        except (OSError, ValueError) as error:
                            ray.cancel(task)
                            del running[task]
                            yield Ended(run.job.run, "failed", f"its files could not be stored: {error}")
                        continue
                    if isinstance(message, Advanced):
                        run.losses = 0
                    if isinstance(message, Ended | _Elsewhere | _Lost):
                        del running[task]
                    if isinstance(message, _Elsewhere):
                        run.elsewhere = True
                        waiting.appendleft(run)
                    elif isinstance(message, _Lost):
                        run.losses, run.elsewhere = run.losses + 1, False
                        if message.again and run.losses <= RETRIES:
                            waiting.appendleft(run)
                        else:
                            times = f"lost {run.losses} times in a row: " if message.again else ""
                            yield Ended(run.job.run, "failed", times + message.reason)
                    elif not (isinstance(message, Started) and run.started):
                        run.started = True
                        yield message
                if stop.numbers:
                    self._stop_all(stopper, running, stop)
                    raise Stopped(stop.numbers[0])

    def _room(self) -> int:
        """How many runs the machines have room for, were they the only ones."""
        import ray

        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        needs = {name: need for name, need in self._needs.items() if need}
        return sum(int(min(machine.get(name, 0) / need for name, need in needs.items())) for machine in machines)

    def _stop_all(self, stopper: Any, running: dict[Any, _Running], stop: Received) -> None:
        """Let every run stop after a checkpoint; a second signal, or the time one may be silent, ends the waiting."""
        import ray

        stopper.set.remote()
        for task in [task for task, run in running.items() if not run.started]:
            ray.cancel(task)
        begun = time.monotonic()
        while running:
            for task in _ready(running):
                run, message = running[task], _next(task)
                if isinstance(message, Files):
                    try:
                        store(message, run.job.root, run.job.directory)
                    except (OSError, ValueError):  # it goes on from what was stored before
                        ray.cancel(task)
                        del running[task]
                elif isinstance(message, Ended | _Elsewhere | _Lost):
                    del running[task]
            if len(stop.numbers) > 1 or time.monotonic() - begun > self._run_timeout:
                for task in running:
                    ray.cancel(task, force=True)
                return


def _train(job: Job, token: str, sent: Files | None, run_timeout: float, stopper: Any) -> Iterator[object]:
    """The task of a run: yields its events, ``Files`` to store where nothing is shared, or ``_Elsewhere``."""
    with stop_signals_are_collected() as stop, _told_to_stop(stopper):
        if _sees(job.root, token):
            yield from _events(job, run_timeout, stop)
        elif sent is None:
            yield _Elsewhere()
        else:
            with TemporaryDirectory(prefix="linear-rope-") as scratch:
                root = Path(scratch) / job.root.name
                there = Job(job.run, run_directory(root, *job.run))
                store(sent, root, root)
                gatherer = Gatherer(there)
                gatherer.changed()  # what was sent
                for event in _events(there, run_timeout, stop):
                    if isinstance(event, Ended | _Lost) or gatherer.has_new_checkpoint:
                        yield gatherer.changed()
                    yield event


def _events(job: Job, run_timeout: float, stop: Received) -> Iterator[Event | _Lost]:
    told = float("-inf")
    if stop.numbers:
        yield _Lost("it was stopped before it began")
        return
    try:
        for event in Local(run_timeout=run_timeout).run([job]):
            if isinstance(event, Ended) and event.state == "queued":
                yield _Lost(event.reason or "it was stopped")
            elif not isinstance(event, Advanced) or time.monotonic() - told > TOLD_SECONDS:
                told = time.monotonic()
                yield event
    except Stopped as stopped:
        status = run_status(job.root, *job.run)
        yield Ended(job.run, "done") if status.state == "done" else _Lost(status.reason or f"stopped by {stopped}")


@contextmanager
def _told_to_stop(stopper: Any) -> Iterator[None]:
    """Send this process SIGTERM when the runs are to stop, or nobody is there any more who could say so."""
    import ray

    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_SECONDS):
            with suppress(ray.exceptions.GetTimeoutError):
                try:
                    stopping = ray.get(stopper.is_set.remote(), timeout=10 * LOOK_SECONDS)
                except ray.exceptions.RayActorError:
                    stopping = True
                if stopping:
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _connected() -> Iterator[None]:
    """Connected to the cluster; a connection that there is already stays. Raises ValueError if no cluster answers."""
    import ray

    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS") or "auto"
    with stop_signals_are_collected():  # Ray handles them in its own way from then on
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"no Ray cluster answers (RAY_ADDRESS is {address!r}: {reason}); give the command on a machine of the "
                "cluster, or start one with `ray start --head`"
            ) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _token(root: Path) -> Iterator[str]:
    """A text that only those who see the comparison's directory can read."""
    token = uuid.uuid4().hex
    write_atomically(root / ".token", token)
    try:
        yield token
    finally:
        with suppress(OSError):
            (root / ".token").unlink()


def _sees(root: Path, token: str) -> bool:
    with suppress(OSError):
        return (root / ".token").read_text() == token
    return False


def _on_this_machine() -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _own_variables() -> dict[str, str]:
    """Of the environment, what the runs heed, and would have here."""
    return {name: value for name, value in os.environ.items() if name.startswith("LINEAR_ROPE_") or name in OF_TRACKERS}


def _ready(tasks: dict[Any, _Running]) -> list[Any]:
    """Those of which there is a message; waits half a second for one."""
    import ray

    if not tasks:
        return []
    ray.wait(list(tasks), timeout=0.5)
    ready: list[Any] = ray.wait(list(tasks), num_returns=len(tasks), timeout=0)[0]
    return ready


def _next(task: Any) -> Any:
    """The next message of a task."""
    import ray

    try:
        return ray.get(next(task))
    except StopIteration:
        return _Lost("its task ended and told nothing")
    except ray.exceptions.TaskCancelledError:
        return _Lost("it was cancelled")
    except ray.exceptions.RayTaskError as error:
        return _Lost(f"{type(error.cause).__name__}: {error.cause}", again=False)
    except ray.exceptions.RayError as error:
        return _Lost(f"{type(error).__name__}: {str(error).splitlines()[0]}")
