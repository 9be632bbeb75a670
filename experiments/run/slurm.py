"""Runs as jobs of Slurm, through submitit: job arrays, whose tasks give each run's own command.

All machines have to see the comparison's directory; submitit's own files are in its folder ``.slurm``. At the end of
its time a job stops after a checkpoint and is queued again. What Slurm reads from variables (SBATCH_PARTITION,
SBATCH_ACCOUNT, SBATCH_QOS and others) is given in them.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Any

from experiments.console import install_command
from experiments.objects import ONE_CORE, Job, Needs
from experiments.run.signals import stop_signals_are_blocked

ARRAY = 1000
"""jobs that are started at a time: Slurm takes no more in an array, unless its MaxArraySize was raised"""
REQUEUED = 1000
"""times that a job may come to the end of its time"""


class Slurm:
    """Jobs of Slurm."""

    elsewhere = True

    def __init__(self, *, workers: int | None = None, needs: Needs = ONE_CORE, cluster: str = "slurm") -> None:
        """``cluster`` is one of submitit's: "local" starts processes of this machine.

        Raises ValueError if submitit or Slurm is not installed, or it gives no such resources.
        """
        if find_spec("submitit") is None:
            raise ValueError(f"--launcher slurm needs submitit; give {install_command('slurm')}, or another launcher")
        if cluster == "slurm" and None in (shutil.which("sbatch"), shutil.which("srun")):
            raise ValueError(
                "--launcher slurm needs Slurm's sbatch and srun, which are not here; give another launcher"
            )
        if needs.minutes is None:
            raise ValueError(
                "--launcher slurm needs --resources minutes=M, the longest time of a job; a run that takes longer is "
                "queued again and goes on"
            )
        for name, value in (("cpu", needs.cpu), ("gpu", needs.gpu)):
            if value != int(value):
                raise ValueError(f"--resources has {name}={value:g}, and Slurm gives whole ones; give a whole number")
        self.room, self._cluster = ARRAY, cluster
        self._parameters: dict[str, Any] = {
            "timeout_min": max(1, round(needs.minutes)),
            "cpus_per_task": int(needs.cpu),
            "slurm_array_parallelism": workers or ARRAY,
            # Since Slurm 22.05 srun does not take it from the job.
            "slurm_srun_args": [f"--cpus-per-task={int(needs.cpu)}"],
        }
        self._parameters |= {} if needs.memory is None else {"mem_gb": needs.memory}
        self._parameters |= {"gpus_per_node": int(needs.gpu)} if needs.gpu else {}

    def start(self, jobs: Sequence[Job]) -> "list[_Submitted]":
        """As Launcher.start says. Raises ValueError if Slurm refuses the jobs."""
        import submitit

        options = {f"{self._cluster}_max_num_timeout": REQUEUED}
        executor = submitit.AutoExecutor(jobs[0].root / ".slurm", self._cluster, **options)
        executor.update_parameters(name=jobs[0].root.name, **self._parameters)
        try:
            with _outside_of_any_job(), executor.batch():
                handles = [executor.submit(_Training(), job) for job in jobs]
        except submitit.core.utils.FailedJobError as error:
            raise ValueError(f"Slurm took no jobs: {str(error).strip().splitlines()[-1]}") from error
        return [_Submitted(handle) for handle in handles]


@contextmanager
def _outside_of_any_job() -> Iterator[None]:
    """Without the variables of the job that this process is in: sbatch would take its sizes for those to reserve."""
    kept = {
        name: os.environ.pop(name) for name in list(os.environ) if name.startswith("SLURM_") and name != "SLURM_CONF"
    }
    try:
        yield
    finally:
        os.environ.update(kept)


class _Training:
    """What a job does; submitit calls ``checkpoint`` when the job's time is over, and queues what that returns."""

    def __call__(self, job: Job) -> int:
        with open(job.directory / "log.txt", "ab") as log, stop_signals_are_blocked():  # the end of its time is ours
            self._process = subprocess.Popen(job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def stop(number: int, frame: FrameType | None) -> None:  # of scancel
            self._process.terminate()

        signal.signal(signal.SIGTERM, stop)
        return self._process.wait()

    def checkpoint(self, job: Job) -> Any:
        import submitit

        self._process.terminate()
        self._process.wait()
        return submitit.helpers.DelayedSubmission(_Training(), job)


class _Submitted:
    """A run's job."""

    def __init__(self, handle: Any) -> None:
        self._handle, self._over = handle, False

    def poll(self) -> int | str | None:
        paths = self._handle.paths
        if paths.result_pickle.exists():
            try:
                return int(self._handle.result())
            except Exception as error:  # of the job, with its traceback
                return f"{(str(error).strip() or type(error).__name__).splitlines()[-1]}; see {paths.stderr}"
        if not self._handle.done():
            return None
        if not self._over:
            self._over = True  # its result may come to this machine a moment later
            return None
        return f"its job ended as {self._handle.state}; see {paths.stderr}"

    def stop(self, *, now: bool) -> None:
        self._handle.cancel(check=False)
