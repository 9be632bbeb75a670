"""``benchmark verify``: recorded runs are trained again by the code that trained them, and their curves compared."""

import math
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from experiments.commands.pack import packed_rows
from experiments.data.files import resolve_data_dir
from experiments.errors import EXIT_FAILED, why
from experiments.extensions import load_plugin, origins
from experiments.objects import Run
from experiments.records import environment
from experiments.records.record import (
    WALL_CLOCK,
    is_finished,
    read_comparison,
    run_config,
    run_directory,
    run_rows,
    run_status,
    write_record,
)
from experiments.records.schema import Comparison, RunConfig
from experiments.run.plan import JobRecord
from experiments.train.tokens import FILE as TOKENIZER

TOLERANCE = {"bits_per_byte": 0.005}
"""by metric, how far runs may be apart that other code, software, threads or machines trained

It is a quarter of the smallest difference that matters. Toys were less than 0.00001 apart: ``run convergence --preset
smoke --steps 400 --seeds 1 --out toys``, then ``benchmark verify toys --at-this-commit`` with the variables
``ATEN_CPU_CAPABILITY=default`` and ``LINEAR_ROPE_NATIVE=0``. Whole runs of the benchmark were not measured."""
OF_THE_WEIGHTS = ("loss", "gradient_norm", "bits_per_byte", "accuracy", "nats_per_token", "nats_per_example")
"""numbers that change with the metric of a comparison, and are judged by it; all others are equal wherever trained"""
DEPENDED_ON = ("numpy", "einops", "performer-pytorch", "tokenizers", "cpu", "device", "threads")
"""packages, parts of a machine and settings that can change a digit, besides what a run's status names"""


class Difference(NamedTuple):
    """A number that is another one when it is trained again; NaN: there is none."""

    step: int
    split: str
    metric: str
    recorded: float
    again: float

    @property
    def size(self) -> float:
        return abs(self.again - self.recorded)

    def __str__(self) -> str:
        values = f"{self.recorded:.6g} on record, {self.again:.6g} now ({self.size:.1g} apart)"
        return f"at step {self.step:,}: {self.split} {self.metric} {values}"


class Recorded(NamedTuple):
    """A run on record."""

    root: Path
    comparison: Comparison
    run: Run

    def numbers(self, root: Path) -> dict[tuple[int, str, str], float]:
        """All but the clock's, by step, split and name: of this run in a comparison's directory, as they are packed."""
        return {
            (row.step, row.split, name): value
            for row in packed_rows(self.comparison, run_rows(root, *self.run))
            for name, value in ({"tokens": row.tokens} | row.metrics).items()
            if name not in WALL_CLOCK
        }

    def __str__(self) -> str:
        return f"{self.root.name}: {self.run}"


def verify(directory: Path, sample: int, seed: int, here: bool, threads: int | None, data_dir: Path | None) -> int:
    """Train ``sample`` recorded runs again and print what came of each, and last how many could be judged.

    Returns the exit status: 0 if any could, and all of these are as on record. Raises ValueError, before anything is
    trained, if there is no such run, or its commit is not in this repository.
    """
    runs = recorded_runs(directory)
    chosen = random.Random(seed).sample(runs, min(sample, len(runs)))
    print(f"{len(chosen)} of {len(runs)} runs in {directory}, drawn with --seed {seed}", flush=True)
    judged = list[bool | None]()
    with ExitStack() as end:
        at = Path(end.enter_context(TemporaryDirectory()))
        commits = dict[str, list[Recorded]]()
        for each in () if here else chosen:
            commits.setdefault(each.comparison.git.commit, []).append(each)
        code = {commit: end.enter_context(worktree(commit, of_it)) for commit, of_it in commits.items()}
        for each in chosen:
            place = code.get(each.comparison.git.commit, environment.ROOT)
            print(f"{each}: training it again ...", file=sys.stderr, flush=True)
            reason = train_again(each, place, at, threads, data_dir)
            is_as_recorded, said = (False, f"failed: {reason}") if reason else compared(each, at / each.root.name)
            judged.append(is_as_recorded)
            print(f"{each}: {said}", flush=True)
    right, wrong = judged.count(True), judged.count(False)
    print(f"{right + wrong} of {len(judged)} judged: {right} as on record, {wrong} not")
    return 0 if right and not wrong else EXIT_FAILED


def recorded_runs(directory: Path) -> list[Recorded]:
    """The runs that are done of a comparison, or of all in a directory, by name. Raises ValueError if there is none."""
    found = []
    for path in sorted([*directory.glob("comparison.json"), *directory.glob("*/comparison.json")]):
        root, comparison = path.parent, read_comparison(path.parent)
        runs = sorted(Run(*run) for run in comparison.runs)
        found += [
            Recorded(root, comparison, run) for run in runs if is_finished(root, *run, comparison.config["steps"])
        ]
    if not found:
        raise ValueError(f"{directory} holds no run that is done; give what `run benchmark --pack` wrote")
    return found


@contextmanager
def worktree(commit: str, recorded: list[Recorded]) -> Iterator[Path]:
    """The code of a commit, built for its runs, for as long as this takes. Raises ValueError if it cannot be had."""
    root = recorded[0].root
    if not re.fullmatch("[0-9a-f]{7,64}", commit):
        raise ValueError(f"{root} names no commit ({commit!r}); give --at-this-commit")
    with TemporaryDirectory() as directory:
        place = Path(directory) / "code"
        try:
            if reason := _git_worktree("add", "--quiet", "--detach", str(place), commit):
                raise ValueError(
                    f"{root} was trained at commit {commit[:12]}, which is not to be had from {environment.ROOT} "
                    f"({reason}); try git fetch --unshallow, or give --at-this-commit"
                )
            if any(str(each.comparison.versions.get("native kernel")).startswith("C++") for each in recorded):
                build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
                subprocess.run(build, cwd=place, capture_output=True)  # if that fails, another kernel is told of
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)  # git removes none that it has not finished, but forgets it
            _git_worktree("remove", "--force", "--force", str(place))  # twice: one that is being made is locked


def _git_worktree(*words: str) -> str:
    """Returns why that failed, if it did."""
    try:
        run = subprocess.run(["git", "-C", str(environment.ROOT), "worktree", *words], capture_output=True, text=True)
    except OSError as error:
        return f"git cannot be run: {why(error)}"
    return " ".join(run.stderr.split()) if run.returncode else ""


def train_again(recorded: Recorded, code: Path, at: Path, threads: int | None, data_dir: Path | None) -> str:
    """Train a run as it is on record, by the command line of some code. Returns that it failed, if it did."""
    comparison, root = recorded.comparison, at / recorded.root.name
    (variant,) = (each for each in comparison.variants if each.name == recorded.run.variant)
    directory = run_directory(root, *recorded.run)
    directory.mkdir(parents=True)
    for name in ("comparison.json", TOKENIZER):
        if (recorded.root / name).exists():
            shutil.copyfile(recorded.root / name, root / name)
    config = comparison.config | variant.of_all_layers | ({} if threads is None else {"threads": threads})
    data = comparison.data[0].sha256
    write_record(directory / "config.json", RunConfig(**recorded.run._asdict(), data_sha256=data, config=config))
    needed = JobRecord(
        data_dir=None if (place := resolve_data_dir(data_dir)) is None else str(place.absolute()),
        data_file=None,
        device=_device(comparison),
        plugins=[origin.module for origin in comparison.plugins],
    )
    write_record(directory / "job.json", needed)
    command = [sys.executable, "-m", "experiments", "train", str(directory)]
    places = str(code), os.getcwd(), os.environ.get("PYTHONPATH")  # the user's plugins lie in the last two
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
    done = subprocess.run(command, cwd=code, env=environ, stdout=2)  # how it goes, on the standard error
    return "" if done.returncode == 0 else f"its training ended with status {done.returncode}; what it said is above"


def compared(recorded: Recorded, root: Path) -> tuple[bool | None, str]:
    """Whether a run in ``root`` is what is on record, None if that cannot be judged, and that in words.

    It has equal digits where the same code, software and processor made it, else its metric is as near as TOLERANCE
    says; that of a metric which is not named there cannot be judged.
    """
    before, now = recorded.numbers(recorded.root), recorded.numbers(root)
    different = [
        Difference(*place, before.get(place, math.nan), now.get(place, math.nan))
        for place in before | now
        if before.get(place) != now.get(place)
    ]
    if not different:
        return True, f"same digits ({len(before)} numbers)"
    metric = recorded.comparison.objective.metric
    fixed = [each for each in different if each.metric not in (metric, *OF_THE_WEIGHTS) or math.isnan(each.size)]
    of_curves = [each for each in different if each.metric == metric]
    largest = max(fixed or of_curves or different, key=lambda each: math.inf if math.isnan(each.size) else each.size)
    unlike = made_unlike(recorded, root)
    if unlike and not fixed:
        if (tolerance := TOLERANCE.get(metric)) is None:
            return None, f"not judged: trained with {unlike}, {metric} has no tolerance (largest difference {largest})"
        if not of_curves or largest.size <= tolerance:
            return True, f"within tolerance ({tolerance:g} of {metric}), as trained with {unlike}; most {largest}"
    return False, f"differs, trained with {unlike or 'the same'}; most {largest}"


def made_unlike(recorded: Recorded, root: Path) -> str:
    """In what a run in ``root`` was trained otherwise than is on record, in words; empty if in nothing."""
    comparison, config = recorded.comparison, run_config(root, *recorded.run)
    then, now = (run_status(place, *recorded.run).trained_with for place in (recorded.root, root))
    then = then or [environment.software_of(comparison)]
    told = [last.unlike(each, "on record") for last in now[-1:] for each in then]
    assert config is not None
    here = environment.versions() | environment.machine(torch.device(_device(comparison))) | config.config
    there = comparison.versions | comparison.machine | comparison.config
    names = (name for name in DEPENDED_ON if there.get(name) != here.get(name))
    told += [f"{name} {here.get(name)} (on record: {there.get(name)})" for name in names]
    for plugin in comparison.plugins:
        try:
            load_plugin(plugin.module)
            (found,) = origins([plugin.module])
        except ValueError:  # the code of its commit could have it, the code that is here cannot
            found = {}
        told += [f"other code of {plugin.module}"] * (found.get("sha256") != plugin.sha256)
    return ", ".join(filter(None, told))


def _device(comparison: Comparison) -> str:
    return "cpu" if comparison.machine.get("device") == "cpu" else "cuda"
