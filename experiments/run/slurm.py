"""Runs as jobs of Slurm, through submitit: job arrays, whose tasks give each run's own command.

All machines have to see the comparison's directory; submitit's own files are in its folder ``.slurm``. At the end of
its time a job stops after a checkpoint and is queued again. What Slurm reads from variables (SBATCH_PARTITION,
SBATCH_ACCOUNT, SBATCH_QOS and others) is given in them.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from experiments.console import install_command
from experiments.objects import ONE_CORE, Job, Needs
from experiments.run.signals import stop_signals_are_blocked

MOST = 1000
"""jobs in an array, unless Slurm's MaxArraySize was raised; and times that one may come to the end of its time"""


class Slurm:
    """Jobs of Slurm."""

    elsewhere = True
    room = MOST

    def __init__(self, *, workers: int | None = None, needs: Needs = ONE_CORE) -> None:
        """Raises ValueError if submitit or Slurm is not installed, or it gives no such resources."""
        if find_spec("submitit") is None:
            raise ValueError(f"--launcher slurm needs submitit; give {install_command('slurm')}, or another launcher")
        if None in (shutil.which("sbatch"), shutil.which("srun")):
            raise ValueError("--launcher slurm needs sbatch and srun, which are not here; give another launcher")
        if needs.minutes is None:
            raise ValueError("--launcher slurm needs --resources minutes=M, after which a run is queued again")
        if needs.cpu % 1 or needs.gpu % 1:
            told = f"cpu={needs.cpu:g}, gpu={needs.gpu:g}, and Slurm gives whole ones; give whole numbers"
            raise ValueError(f"--resources has {told}")
        self._parameters: dict[str, Any] = {
            "timeout_min": max(1, round(needs.minutes)),
            "cpus_per_task": int(needs.cpu),
            "mem_gb": needs.memory,
            "gpus_per_node": int(needs.gpu) or None,
            "slurm_array_parallelism": workers or MOST,
            # Since Slurm 22.05 srun does not take it from the job.
            "slurm_srun_args": [f"--cpus-per-task={int(needs.cpu)}"],
        }

    def start(self, jobs: Sequence[Job]) -> "list[_Submitted]":
        """As Launcher.start says. Raises ValueError if Slurm refuses the jobs."""
        import submitit

        root = jobs[0].root
        executor = submitit.AutoExecutor(root / ".slurm", "slurm", slurm_max_num_timeout=MOST)
        given = {name: value for name, value in self._parameters.items() if value is not None}
        executor.update_parameters(name=root.name, **given)
        # sbatch would take the sizes of the job that this process is in for those to reserve.
        own = {name for name in os.environ if name.startswith("SLURM_") and name != "SLURM_CONF"}
        kept = {name: os.environ.pop(name) for name in own}
        try:
            with executor.batch():
                handles = [executor.submit(_Training(), job) for job in jobs]
        except submitit.core.utils.FailedJobError as error:
            raise ValueError(f"Slurm took no jobs: {str(error).strip().splitlines()[-1]}") from error
        finally:
            os.environ.update(kept)
        return [_Submitted(handle) for handle in handles]


class _Training:
    """What a job does; submitit calls ``checkpoint`` when the job's time is over, and queues what that returns."""

    def __call__(self, job: Job) -> int:
        with open(job.directory / "log.txt", "ab") as log, stop_signals_are_blocked():  # the end of its time is ours
            self._process = subprocess.Popen(job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        signal.signal(signal.SIGTERM, lambda number, frame: self._process.terminate())  # of scancel
        return self._process.wait()

    def checkpoint(self, job: Job) -> Any:
        import submitit

        self._process.terminate()
        # Not wait(): the one that this signal broke into holds its lock.
        with suppress(ChildProcessError):  # it had ended
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(_Training(), job)


class _Submitted:
    """A run's job."""

    def __init__(self, handle: Any) -> None:
        self._handle, self._is_over = handle, False

    def poll(self) -> int | str | None:
        paths = self._handle.paths
        if paths.result_pickle.exists():
            try:
                return int(self._handle.result())
            except Exception as error:  # of the job, with its traceback
                return f"{(str(error).strip() or type(error).__name__).splitlines()[-1]}; see {paths.stderr}"
        # Its result may come to this machine a moment later.
        was_over, self._is_over = self._is_over, self._handle.done()
        return f"its job ended as {self._handle.state}; see {paths.stderr}" if was_over else None

    def stop(self, *, now: bool) -> None:
        self._handle.cancel(check=False)
