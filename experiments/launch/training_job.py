"""What a run's directory says that is to be trained, and its training in one process of those that do it."""

import json
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from experiments.config import Config
from experiments.extensions import load_plugin
from experiments.launch.launcher import Job, Run
from experiments.launch.runs import JobRecord
from experiments.launch.signals import stop_signals_are_collected
from experiments.records.files import read_file
from experiments.records.lease import machine
from experiments.records.record import is_finished, read_comparison, read_record, run_directory
from experiments.records.schema import RunConfig
from experiments.trackers.registry import Trackers
from experiments.trackers.tracker import TrackedRun

if TYPE_CHECKING:
    from experiments.training.objectives import Objective
    from experiments.training.processes import Connected


def read_job(path: Path) -> tuple[Job, RunConfig, JobRecord]:
    """The job of a run's directory, and its config.json and job.json. Raises ValueError if it is no such directory."""
    directory = Path(os.path.abspath(path))
    config = read_record(directory / "config.json", RunConfig, "give the directory of a run: COMPARISON/VARIANT/seedK")
    job = Job(Run(config.variant, config.seed), directory)
    if not str(directory).endswith(f"{os.sep}{run_directory(Path(), config.variant, config.seed)}"):
        raise ValueError(f"{path} holds the config.json of {job.run}; give the directory of a run: .../VARIANT/seedK")
    file, remedy = directory / "job.json", "run its comparison again, which writes it"
    try:
        # The paths in it need not be text, which msgspec does not read.
        return job, config, msgspec.convert(json.loads(read_file(file, remedy)), JobRecord)
    except (msgspec.ValidationError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is damaged ({error}); {remedy}") from None


def load_objective(job: Job, record: RunConfig, needed: JobRecord) -> "Objective":
    """What a run is trained for. Raises ValueError if its data, or what comes with them, cannot be had here."""
    from experiments.data.registry import load_data
    from experiments.training.chosen_objective import make_objective
    from experiments.training.pretrained import AS_PRETRAINED

    config = Config(**record.config)
    if needed.initial_weights:
        # The configuration has it as it was given, from a directory that need not be this one. What a variant sets for
        # itself is compared with its encoder's variant, all else with what the comparison has.
        shared = read_comparison(job.root).config
        as_pretrained = {name: shared[name] for name in AS_PRETRAINED if name in shared}
        config = replace(config, initial_weights=needed.initial_weights, **as_pretrained)
    data_dir, data_file = (None if path is None else Path(path) for path in (needed.data_dir, needed.data_file))
    return make_objective(load_data(config.data, data_dir, data_file), config, job.root)


def train_job(
    job: Job,
    several: bool,
    *,
    progress: Callable[[int, float, float, str, int], None] = lambda step, loss, rate, unit, steps: None,
    should_stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda sentence: None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Train what is left of a run, as one of ``several`` processes or alone.

    ``progress`` is told the unit of the loss and the last step besides; all else is as ``train_run`` says.

    Raises:
        RunFailed, RunStopped, OSError: as ``train_run``; or the data are no longer those of the comparison.
    """
    import torch

    from experiments.training.loop import train_run
    from experiments.training.processes import ALONE, connect, tells_of_a_lost_process
    from experiments.training.steps import RunFailed
    from experiments.variants import get_variant

    _, record, needed = read_job(job.directory)
    _check_machine(needed, note)
    for module in needed.plugins:
        load_plugin(module)
    config, objective = Config(**record.config), load_objective(job, record, needed)
    if objective.corpus.sha256 != record.data_sha256:
        raise RunFailed("the data set changed while the comparison ran")
    variant = get_variant(job.run.variant)
    if objective.initial_weights(variant, job.run.seed) != record.initial_weights_sha256:
        raise RunFailed(f"the encoder in {config.initial_weights} changed while the comparison ran")
    device = torch.device(needed.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RunFailed(f"it is to be trained on a GPU, and PyTorch finds no CUDA device on {_host()}")
    processes = connect(device, config.threads, _sharing(needed.shard)) if several else ALONE
    tracked = TrackedRun(job.root, job.directory, *job.run, record.config, needed.comparison or str(job.root))
    try:
        with Trackers(needed.trackers if processes.is_first else [], tracked, note) as trackers:
            train_run(
                job.directory,
                variant,
                job.run.seed,
                config,
                objective,
                processes.device(device),
                progress=lambda step, loss, rate: progress(step, loss, rate, objective.loss_unit, config.steps),
                should_stop=should_stop,
                note=note,
                follow=trackers.follow,
                check=check,
                processes=processes,
            )
    except RuntimeError as error:
        if not tells_of_a_lost_process(error):
            raise
        traceback.print_exc()
        raise RunFailed("another of the processes that train it has ended, or cannot be reached") from None
    finally:
        processes.part_ways()


def _sharing(shard: bool) -> "type[Connected]":
    """How processes train a model together."""
    from experiments.training.processes import Connected

    if not shard:
        return Connected
    from experiments.training.sharded import Sharded  # which not every PyTorch can import

    return Sharded


def _check_machine(needed: JobRecord, note: Callable[[str], None]) -> None:
    """Note what this machine has in other versions than the comparison's. Raises RunFailed if it has other code."""
    from experiments.records import environment
    from experiments.training.steps import RunFailed

    code = environment.code_sha256()
    if needed.machine not in ("", machine()) and needed.code_sha256 != code:
        raise RunFailed(
            f"{_host()} has other code of linear-rope than the machine that its comparison was given on (sha256 "
            f"{code[:12]}, there {needed.code_sha256[:12]}); install the same on both, or give the command again"
        )
    here = environment.versions()
    told = {name: there for name, there in needed.versions.items() if name != environment.PROOFS}
    if differing := [f"{name} {here.get(name)} (there {x})" for name, x in told.items() if here.get(name) != x]:
        note(f"trained on {_host()} with other versions than its comparison: {', '.join(differing)}")


def _host() -> str:
    return machine().partition(" ")[0]


def take_part(job: Job) -> int:
    """Train beside the first process, which writes the files, says when to stop and records how the run ended.

    Returns the exit status.
    """
    from experiments.training.loop import RunStopped
    from experiments.training.steps import RunFailed

    with stop_signals_are_collected() as received:  # and left to the first one, which gets them too
        try:
            if not is_finished(job.root, *job.run, read_job(job.directory)[1].config["steps"]):
                train_job(job, several=True)
        except RunStopped:
            return 128 + (received.numbers[0] if received.numbers else signal.SIGTERM)
        except RunFailed:
            return 1
        except Exception:
            traceback.print_exc()
            return 1
    return 0
