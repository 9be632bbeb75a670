"""Runs as jobs of Slurm, through submitit: job arrays, whose tasks train in a process of their own (local.py).

All machines have to see the comparison's directory; submitit's own files are in its folder ``.slurm``. At the end of
its time a job stops after a checkpoint and is queued again. What Slurm reads from variables (SBATCH_PARTITION,
SBATCH_ACCOUNT, SBATCH_QOS and others) is given in them.
"""

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from experiments.console import install_command
from experiments.launch.launcher import Advanced, Ended, Event, Job, Started
from experiments.launch.local import Local
from experiments.launch.resources import ONE_CORE, Resources
from experiments.launch.signals import Stopped, stop_signals_are_collected
from experiments.records.lease import holders
from experiments.records.record import run_status

ARRAY = 1000
"""jobs in an array; Slurm takes no more, unless its MaxArraySize was raised"""
REQUEUED = 1000
"""times that a job may come to the end of its time"""
LOOK_SECONDS = 1.0
STOP_SECONDS = 60
"""for cancelled jobs to end; Slurm kills them sooner, 30 s after it has told them, unless its KillWait was raised"""


class Slurm:
    """Jobs of Slurm."""

    elsewhere = True

    def __init__(
        self,
        *,
        workers: int = ARRAY,
        run_timeout: float = float("inf"),
        resources: Resources = ONE_CORE,
        cluster: str = "slurm",
    ) -> None:
        """``cluster`` is one of submitit's: "local" starts processes of this machine.

        Raises ValueError if submitit or Slurm is not installed, or it gives no such resources.
        """
        if find_spec("submitit") is None:
            raise ValueError(f"--launcher slurm needs submitit; give {install_command('slurm')}, or another launcher")
        if cluster == "slurm" and None in (shutil.which("sbatch"), shutil.which("srun")):
            raise ValueError(
                "--launcher slurm needs Slurm's sbatch and srun, which are not here; give another launcher"
            )
        if resources.minutes is None:
            raise ValueError(
                "--launcher slurm needs --resources minutes=M, the longest time of a job; a run that takes longer is "
                "queued again and goes on"
            )
        for name, value in (("cpu", resources.cpu), ("gpu", resources.gpu)):
            if value != int(value):
                raise ValueError(f"--resources has {name}={value:g}, and Slurm gives whole ones; give a whole number")
        self._run_timeout, self._cluster = run_timeout, cluster
        self._parameters: dict[str, Any] = {
            "timeout_min": max(1, round(resources.minutes)),
            "cpus_per_task": int(resources.cpu),
            "slurm_array_parallelism": workers,
        }
        self._parameters |= {} if resources.memory is None else {"mem_gb": resources.memory}
        self._parameters |= {"gpus_per_node": int(resources.gpu)} if resources.gpu else {}

    def run(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """As Launcher.run says. Raises ValueError if Slurm refuses the jobs."""
        with stop_signals_are_collected() as stop:
            # Of a command that was killed the jobs go on.
            trained = holders(job.directory for job in jobs)
            for job in [job for job in jobs if job.directory in trained]:
                told = f"an earlier job trains it ({trained[job.directory]}); give the command again when it ends"
                yield Ended(job.run, "running", told)
            running = self._submit([job for job in jobs if job.directory not in trained])
            while running:
                for job, place in list(running.items()):
                    yield from place.news()
                    if (ended := place.ended()) is not None:
                        del running[job]
                        yield ended
                if stop.numbers:
                    _stop_all(list(running.values()))
                    raise Stopped(stop.numbers[0])
                time.sleep(LOOK_SECONDS)

    def _submit(self, jobs: Sequence[Job]) -> dict[Job, "_Submitted"]:
        import submitit

        submitted = dict[Job, _Submitted]()
        for first in range(0, len(jobs), ARRAY):
            some = jobs[first : first + ARRAY]
            executor = submitit.AutoExecutor(
                jobs[0].root / ".slurm", self._cluster, **{f"{self._cluster}_max_num_timeout": REQUEUED}
            )
            executor.update_parameters(name=jobs[0].root.name, **self._parameters)
            try:
                with executor.batch():
                    handles = [executor.submit(_Training(), job, self._run_timeout) for job in some]
            except submitit.core.utils.FailedJobError as error:
                _stop_all(list(submitted.values()))
                took = f"only {len(submitted)} of {len(jobs)} jobs, now stopped" if submitted else "no jobs"
                raise ValueError(f"Slurm took {took}: {_last_line(error)}") from error
            submitted |= {job: _Submitted(job, handle) for job, handle in zip(some, handles, strict=True)}
        return submitted


class _Training:
    """What a job does; submitit calls ``checkpoint`` when the job's time is over, and queues what that returns."""

    def __call__(self, job: Job, run_timeout: float) -> Ended:
        try:
            for event in Local(run_timeout=run_timeout).run([job]):
                if isinstance(event, Ended):
                    return event
        except Stopped as stopped:
            status = run_status(job.root, *job.run)
            return Ended(
                job.run, "done" if status.state == "done" else "queued", status.reason or f"stopped by {stopped}"
            )
        return Ended(job.run, "failed", "its process told nothing of it")

    def checkpoint(self, job: Job, run_timeout: float) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self, job, run_timeout)


class _Submitted:
    """A run's job."""

    def __init__(self, job: Job, handle: Any) -> None:
        self._job, self.handle = job, handle
        self._started = self._over = False
        self._metrics, self._read = job.directory / "metrics.jsonl", 0
        with suppress(FileNotFoundError):
            self._read = self._metrics.stat().st_size

    def news(self) -> Iterator[Event]:
        """That it started, and its newest progress."""
        if not self._started and self.handle.paths.stdout.exists():
            self._started = True
            yield Started(self._job.run)
        with suppress(FileNotFoundError):
            if self._started and self._metrics.stat().st_size > self._read:
                with open(self._metrics, "rb") as file:
                    file.seek(self._read)
                    lines, _, rest = file.read().rpartition(b"\n")
                    self._read = file.tell() - len(rest)
                rows = [json.loads(line) for line in lines.splitlines()]
                for row in [row for row in rows if row["split"] == "train"][-1:]:
                    yield Advanced(self._job.run, row["step"], row["loss"], row["tokens_per_second"])

    def ended(self) -> Ended | None:
        """How it ended, if it did."""
        if self.handle.paths.result_pickle.exists():
            return self._result()
        if not self.handle.done():
            return None
        if not self._over:
            self._over = True  # its result may come to this machine a moment later
            return None
        return Ended(self._job.run, "failed", f"its job ended as {self.handle.state}; see {self.handle.paths.stderr}")

    def _result(self) -> Ended:
        try:
            ended: Ended = self.handle.result()
            return ended
        except Exception as error:  # of the job, with its traceback
            return Ended(self._job.run, "failed", f"{_last_line(error)}; see {self.handle.paths.stderr}")


def _last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def _stop_all(running: list[_Submitted]) -> None:
    """Let every job stop after a checkpoint."""
    for each in running:
        each.handle.cancel(check=False)
    deadline = time.monotonic() + STOP_SECONDS
    while running and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        running = [
            each
            for each in running
            if not (each.handle.paths.result_pickle.exists() or each.handle.done(force_check=True))
        ]
