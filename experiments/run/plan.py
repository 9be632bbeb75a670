"""What the runs of a comparison share, and what each finds in its directory: config.json, job.json and status.json."""

import os
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct

from experiments.config import Config
from experiments.data.files import resolve_data_dir
from experiments.objects import Job, Run
from experiments.records import environment
from experiments.records.lock import LEASE
from experiments.records.record import is_finished, read_record, run_directory, run_rows, run_status, write_record
from experiments.records.schema import Origin, RunConfig, Software, State, Status


class JobRecord(Struct, kw_only=True):
    """A run's job.json: what it needs besides its config.json, on this machine."""

    data_dir: str | None
    data_file: str | None
    initial_weights: str = ""
    """directory of the comparison that trained what the run begins with"""
    device: str
    nproc: int = 1
    """processes that train it together, where torchrun has started none"""
    shard: bool = False
    """whether they share out the weights"""
    plugins: list[str]
    """modules to import first, in which the variant or the data set may be"""
    trackers: list[str] = []
    """what shows its numbers elsewhere, too"""
    host: str = ""
    """where its command was given"""
    code_sha256: str = ""
    """of the code there; another machine must have the same"""


@dataclass(frozen=True)
class Training:
    """What the runs of a comparison share."""

    root: Path
    config: Config
    data_dir: Path | None
    data_file: Path | None
    data_sha256: str
    device: str
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """by variant, what its configuration has besides; steps and data are the same for all"""
    nproc: int = 1
    """processes that train one run together"""
    shard: bool = False
    """whether they share out the weights"""
    plugins: Sequence[Origin] = ()
    """the code from outside that takes part"""
    initial_weights: Mapping[str, str] = field(default_factory=dict)
    """``Comparison.initial_weights``"""
    trackers: Sequence[str] = ()

    def config_of(self, variant: str) -> Config:
        return replace(self.config, **self.settings.get(variant, {}))

    def job(self, run: Run) -> Job:
        return Job(run, Path(os.path.abspath(run_directory(self.root, *run))))

    @cached_property
    def needed(self) -> JobRecord:
        """The job.json of every run."""
        begins_with = self.config.initial_weights
        return JobRecord(
            data_dir=_absolute(resolve_data_dir(self.data_dir)),
            data_file=_absolute(self.data_file),
            initial_weights="" if begins_with == "none" else os.path.abspath(begins_with),
            device=self.device,
            nproc=self.nproc,
            shard=self.shard,
            plugins=[origin.module for origin in self.plugins],
            trackers=list(self.trackers),
            host=socket.gethostname(),
            code_sha256=environment.code_sha256(),
        )

    def is_finished(self, run: Run) -> bool:
        return is_finished(self.root, *run, self.config.steps)

    def drop(self, run: Run) -> None:
        """Remove what an unfinished run has left, where runs keep no checkpoint to go on from before their last step.

        It begins anew: on a GPU the same steps give other last digits, and its records would be of two runs.
        """
        job = self.job(run)
        # A shorter run that is extended has been tested.
        is_begun = self.config.checkpoint_every >= self.config.steps and not _was_tested(self.root, run)
        if is_begun and not _may_be_in_training(job):
            shutil.rmtree(job.directory, ignore_errors=True)


def prepare_runs(training: Training, runs: Sequence[Run]) -> list[Job]:
    """Write what every run needs that is not done. Raises OSError if it cannot be written."""
    jobs = [training.job(run) for run in runs if not training.is_finished(run)]
    for job in jobs:
        job.directory.mkdir(parents=True, exist_ok=True)
        write_record(job.directory / "config.json", run_config_of(training, job.run))
        write_record(job.directory / "job.json", training.needed)
        if not _may_be_in_training(job):
            write_status(job.directory, "queued")
    return jobs


def _absolute(path: Path | None) -> str | None:
    return None if path is None else os.path.abspath(path)


def _may_be_in_training(job: Job) -> bool:
    """Whether a process has begun to train it, and may be alive."""
    with suppress(ValueError):
        return (job.directory / LEASE).exists() and run_status(job.root, *job.run).state == "running"
    return False


def _was_tested(root: Path, run: Run) -> bool:
    """Whether a run, perhaps of fewer steps, has ended before; of damaged records nobody knows."""
    try:
        return any(row.split == "test" for row in run_rows(root, *run))
    except ValueError:
        return True


def run_config_of(training: Training, run: Run) -> RunConfig:
    """What a run's config.json says."""
    return RunConfig(
        variant=run.variant,
        seed=run.seed,
        data_sha256=training.data_sha256,
        config=asdict(training.config_of(run.variant)),
        initial_weights_sha256=training.initial_weights.get(f"{run.variant}/seed{run.seed}", ""),
    )


def write_status(
    directory: Path,
    state: State,
    reason: str | None = None,
    note: str | None = None,
    trained_with: list[Software] | None = None,
) -> None:
    """Write a run's status.json; notes, and what it was trained with, are kept. Raises OSError if that cannot be."""
    there = _status(directory)
    notes = there.notes if note is None or note in there.notes else [*there.notes, note]
    software = there.trained_with if trained_with is None else trained_with
    status = Status(state=state, reason=reason, notes=notes, time=time.time(), trained_with=software)
    write_record(directory / "status.json", status)


def write_that_it_is_trained(directory: Path, now: Software) -> None:
    """Write that a run is being trained from now on with this. Raises OSError if it cannot be written."""
    has_begun = (directory / "metrics.jsonl").exists()
    before = _status(directory).trained_with if has_begun else []
    # What a run was begun with that does not say so is not known.
    is_new = before[-1] != now if before else not has_begun
    write_status(directory, "running", trained_with=[*before, now] if is_new else before)


def _status(directory: Path) -> Status:
    path = directory / "status.json"
    try:
        return read_record(path, Status) if path.exists() else Status(state="queued")
    except ValueError:
        return Status(state="queued", notes=["its status.json was damaged and was written anew"])
