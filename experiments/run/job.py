"""The training of one run: what the command ``train`` does, on this machine or another.

All it is given is the run's directory. What must last goes into ``status.json``, which is touched as a sign of life.
"""

import os
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import torch
from filelock import SoftFileLease, Timeout

from experiments.config import Config
from experiments.console import PLAIN_SECONDS
from experiments.data.registry import load_data
from experiments.extensions import load_plugin
from experiments.objects import Job, Run
from experiments.records import environment
from experiments.records.files import check_links, remove_leftovers
from experiments.records.lock import LeaseLost, check_lease, run_lease
from experiments.records.record import is_finished, read_comparison, read_record, run_directory, write_record
from experiments.records.schema import RunConfig
from experiments.run.display import closing_line, rates
from experiments.run.loop import UNRECORDED, Ended
from experiments.run.peers import check_can_share, end_with_the_first, peers
from experiments.run.plan import JobRecord, write_status, write_that_it_is_trained
from experiments.run.signals import stop_signals_are_collected
from experiments.trackers.registry import TrackedRun, Trackers
from experiments.train.chosen_objective import make_objective
from experiments.train.group import Group, connect, tells_of_a_lost_process
from experiments.train.loop import RunLog, RunStopped, Trainer
from experiments.train.objectives import Objective
from experiments.train.pretrained import AS_PRETRAINED
from experiments.train.steps import RunFailed
from experiments.variants import get_variant

LEASE_SECONDS = 300
"""to wait for a process that trains it: the orphan of a killed command lets go of it within a step"""
SIGN_SECONDS = 1.0
"""between two signs of life"""


def train_directory(path: Path, trackers: Sequence[str] = (), plugins: Sequence[str] = ()) -> int:
    """Train what is left of the run in a directory, in this process, and print how it goes.

    Where torchrun has started processes, this is one of them, and they train it together; else it starts the others.
    ``trackers`` follow the run from now on; none: those that its comparison was run with. ``plugins`` are imported by
    the others too.

    Returns the exit status: 0 done, 1 failed, 130 or 143 stopped after a checkpoint, UNRECORDED.

    Raises:
        ValueError: it is not the directory of a run that a comparison has made, or so many processes cannot train it.
    """
    job, record, needed = read_job(path)
    count, rank = int(os.environ.get("WORLD_SIZE", needed.nproc)), int(os.environ.get("RANK", 0))
    check_can_share(record.config["batch_size"], count)
    check_links(job.directory)
    if trackers and rank == 0:
        write_record(job.directory / "job.json", msgspec.structs.replace(needed, trackers=list(trackers)))
    with stop_signals_are_collected() as received:
        try:
            ended = Ended(job.run, "done")
            if not is_finished(job.root, *job.run, record.config["steps"]):
                ended = _train_as_peer(job) if rank > 0 else _train_here(job, received, count, plugins)
        except OSError:
            with suppress(OSError):  # of a full disk, with the log on it
                traceback.print_exc()
            return UNRECORDED
    if rank == 0:
        with suppress(OSError):
            print(closing_line(ended), flush=True)
    return {"done": 0, "failed": 1}.get(ended.state, 128 + received[0] if received else 1)


def _train_as_peer(job: Job) -> Ended:
    """Train beside the first process, which writes the files, says when to stop and records how the run ended."""
    end_with_the_first()
    return _ended(job.run, partial(train_job, job, True, RunLog()))


def _train_here(job: Job, received: list[int], count: int, plugins: Sequence[str]) -> Ended:
    """Train as the first of ``count`` processes, and record how it ended. Raises OSError if that cannot be."""
    lease = run_lease(job.directory)
    try:
        lease.acquire(timeout=LEASE_SECONDS, poll_interval=0.5, cancel_check=lambda: bool(received))
    except Timeout:
        if received:
            return Ended(job.run, "queued", "stopped before its first step")
        told = f"another process has been training it in the same directory for {LEASE_SECONDS} s"
        return Ended(job.run, "running", told)

    def train() -> None:
        remove_leftovers(job.directory)
        write_that_it_is_trained(job.directory, environment.software(read_job(job.directory)[2].device))
        with peers(job, count, plugins):
            train_job(job, count > 1, JobLog(job, lease, received))

    try:  # held until the end is recorded, so that nobody else's status is overwritten
        ended = _ended(job.run, train)
        with suppress(LeaseLost):
            check_lease(lease)
            write_status(job.directory, ended.state, ended.reason)
        return ended
    finally:
        lease.release()


def _ended(run: Run, train: Callable[[], None]) -> Ended:
    """How a run's training ends."""
    try:
        train()
    except RunStopped as error:
        return Ended(run, "queued", str(error))
    except (RunFailed, LeaseLost) as error:
        return Ended(run, "failed", str(error))
    except Exception as error:
        with suppress(OSError):
            traceback.print_exc()
        return Ended(run, "failed", " ".join(f"{type(error).__name__}: {error}".split())[:400])
    return Ended(run, "done")


class JobLog(RunLog):
    """Prints how a run goes, and signs its directory's life in between."""

    def __init__(self, job: Job, lease: SoftFileLease, received: list[int]) -> None:
        super().__init__()
        self._job, self._lease, self._received = job, lease, received
        self._signed = self._printed = float("-inf")

    def check(self) -> None:
        check_lease(self._lease)

    def should_stop(self) -> bool:
        if time.monotonic() - self._signed > SIGN_SECONDS:
            self._signed = time.monotonic()
            with suppress(OSError):
                os.utime(self._job.directory / "status.json")
        return bool(self._received)

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        if step == self.steps or time.monotonic() - self._printed > PLAIN_SECONDS:
            self._printed = time.monotonic()
            told = rates(loss, tokens_per_second, self.unit)
            print(f"{self._job.run}: step {step}/{self.steps}, {told}", flush=True)

    def note(self, sentence: str) -> None:
        print(sentence, flush=True)
        self.check()
        write_status(self._job.directory, "running", note=sentence)


def read_job(path: Path) -> tuple[Job, RunConfig, JobRecord]:
    """The job of a run's directory, and its config.json and job.json. Raises ValueError if it is no such directory."""
    directory = Path(os.path.abspath(path))
    config = read_record(directory / "config.json", RunConfig, "give the directory of a run: COMPARISON/VARIANT/seedK")
    job = Job(Run(config.variant, config.seed), directory)
    if not str(directory).endswith(f"{os.sep}{run_directory(Path(), config.variant, config.seed)}"):
        raise ValueError(f"{path} holds the config.json of {job.run}; give the directory of a run: .../VARIANT/seedK")
    return job, config, read_record(directory / "job.json", JobRecord, "run its comparison again, which writes it")


def load_objective(job: Job, record: RunConfig, needed: JobRecord) -> Objective:
    """What a run is trained for. Raises ValueError if its data, or what comes with them, cannot be had here."""
    config = Config.of(record.config)
    if needed.initial_weights:
        # The configuration has it as it was given, from a directory that need not be this one. What a variant sets for
        # itself is compared with its encoder's variant, all else with what the comparison has.
        shared = read_comparison(job.root).config
        as_pretrained = {name: shared[name] for name in AS_PRETRAINED if name in shared}
        config = replace(config, initial_weights=needed.initial_weights, **as_pretrained)
    data_dir, data_file = (None if path is None else Path(path) for path in (needed.data_dir, needed.data_file))
    return make_objective(load_data(config.data, data_dir, data_file), config, job.root)


def train_job(job: Job, several: bool, log: RunLog) -> None:
    """Train what is left of a run, as one of ``several`` processes or alone.

    Raises:
        RunFailed, RunStopped, OSError: as ``Trainer.fit``; or the data are no longer those of the comparison.
    """
    _, record, needed = read_job(job.directory)
    host, code = socket.gethostname(), environment.code_sha256()
    if needed.host not in ("", host) and needed.code_sha256 != code:
        told = f"than {needed.host}, where its command was given (sha256 {code[:12]}, there {needed.code_sha256[:12]})"
        raise RunFailed(f"{host} has other code of linear-rope {told}; install the same on both")
    for module in needed.plugins:
        load_plugin(module)
    config, objective = Config.of(record.config), load_objective(job, record, needed)
    if objective.corpus.sha256 != record.data_sha256:
        raise RunFailed("the data set changed while the comparison ran")
    variant = get_variant(job.run.variant)
    if objective.initial_weights(variant, job.run.seed) != record.initial_weights_sha256:
        raise RunFailed(f"the encoder in {config.initial_weights} changed while the comparison ran")
    device = torch.device(needed.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RunFailed(f"it is to be trained on a GPU, and PyTorch finds no CUDA device on {host}")
    group = connect(device, config.threads, needed.shard) if several else Group(device)
    tracked = TrackedRun(job.root, job.directory, *job.run, record.config)
    try:
        with Trackers(needed.trackers if group.is_first else [], tracked, log.note) as trackers:
            log.followers.append(trackers.follow)
            Trainer(job.directory, variant, job.run.seed, config, objective, log, group).fit()
    except RuntimeError as error:
        if not tells_of_a_lost_process(error):
            raise
        traceback.print_exc()
        raise RunFailed("another of the processes that train it has ended, or cannot be reached") from None
    finally:
        group.close()
