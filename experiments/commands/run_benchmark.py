"""``run benchmark``: what the benchmark still lacks is trained, in the order of its worth.

Each task is an ordinary comparison in a directory of its name; later stages merge variants and seeds into it. What is
done is not repeated, so the same command goes on after a stop. Learning rates are searched by tasks too, and a variant
whose rate is not found yet waits for it.
"""

import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from experiments.commands.estimate import estimated_seconds
from experiments.commands.pack import pack
from experiments.commands.plan import check_together, is_reported, make_plan
from experiments.commands.run_measurements import run_measurements
from experiments.commands.run_training import run_training
from experiments.config import Config
from experiments.console import command_line, duration, make_console, many, printable
from experiments.data.registry import load_data
from experiments.errors import EXIT_FAILED, RunFailed
from experiments.objects import Job, Run
from experiments.options import RunOptions, as_words
from experiments.records.files import write_atomically
from experiments.records.record import TRIALS, is_finished, read_comparison, run_directory
from experiments.report.tables import FLOPS, STATE, costs_in_words
from experiments.run.time_limit import TimeLimit, parse_time, share_left
from experiments.studies.benchmark.definition import NAME, STUDY, Benchmark, Comparison, read_benchmark
from experiments.train.chosen_objective import make_objective
from experiments.train.costs import costs
from experiments.train.models import resolve_device
from experiments.train.objectives import Objective
from experiments.train.tuning import SEED, parse_rates, search_of, trial_name
from experiments.variants import Variant, get_variant, parse_variants, without_rate

OPTIONS = tuple(
    "preset task variants out data_dir device workers nproc run_timeout reuse tracker for_ pack dry_run plugin".split()
)
"""what it takes; what is trained, and how, is frozen"""
RECORDED = ("preset", "out", "data_dir", "device", "plugin")
"""those of them that the record of a task names"""
MEASURED = ("preset", "device", "plugin")
"""those that a study that trains nothing takes"""
PRESETS = ("cpu", "smoke")
RECORD = "comparison.json"


def run_benchmark(options: RunOptions, clock: Callable[[], float] = time.monotonic) -> int:
    """Train what is missing, or print the plan. Returns the exit status. Raises ValueError for wrong use."""
    options.refuse_others(OPTIONS, f"would make other runs than those of benchmark {NAME}")
    check_together(options)
    if options.preset not in PRESETS:
        raise ValueError(f"--preset is {options.preset}; run benchmark has {' and '.join(PRESETS)}")
    limit = None if options.for_ is None else TimeLimit(parse_time(options.for_), clock)
    driver = _Driver(options, read_benchmark(), make_console(), resolve_device(options.device))
    comparisons = driver.comparisons()
    if options.dry_run:
        driver.print_plan(comparisons)
        return 0
    return driver.train(comparisons, limit)


@dataclass
class _Driver:
    options: RunOptions
    benchmark: Benchmark
    console: Console
    device: torch.device
    objectives: dict[str, Objective] = field(default_factory=dict)
    estimates: dict[str, dict[str, float]] = field(default_factory=dict)
    """by task and variant, without its learning rate: seconds of a run"""

    def comparisons(self) -> list[Comparison]:
        """What is to be trained, in order; with ``--variants`` these, on all seeds of the tasks that are named."""
        tasks = tuple((self.options.task or "").split(",")) if self.options.task else ()
        found = self.benchmark.comparisons(self.options.preset, tasks)
        if self.options.variants is None:
            return found
        if not tasks:
            raise ValueError("--variants is given without --task; name the tasks that the variants are added to")
        names = tuple(variant.name for variant in parse_variants(self.options.variants))
        last, most = {each.task: each for each in found}, self.options.seeds or math.inf
        return [replace(each, variants=names, seeds=int(min(each.seeds, most))) for each in last.values()]

    def root(self, task: str) -> Path:
        """Where it is trained."""
        default = Path("results/runs") / STUDY / (NAME if self.options.preset == "cpu" else self.options.preset)
        return (self.options.out or default) / task

    def known(self, task: str) -> Path:
        """Where it is known what is trained: in its directory or, where there is none, in the packed one."""
        root, packed = self.root(task), self.options.pack
        return packed / task if packed and (packed / task).exists() and not (root / RECORD).exists() else root

    def config(self, task: str) -> Config:
        return self.benchmark.config(task, self.options.preset)

    def grid(self, task: str) -> list[float]:
        """From which its variants' learning rates are searched."""
        grid = self.benchmark.grid(task, self.options.preset)
        return parse_rates(grid) if grid else []

    def rates_found(self, task: str) -> dict[str, float]:
        """By variant, the learning rate that a task's search has found."""
        known = self.known(task)
        variants = read_comparison(known).variants if (known / RECORD).exists() else []
        return {each.name: each.settings["learning_rate"] for each in variants if "learning_rate" in each.settings}

    def variants(self, each: Comparison) -> list[str]:
        """Its variants; beside rates that are not found yet, as if the middle of the grid had been."""
        of = self.benchmark.tasks[each.task].neighbours_of
        if not of:
            return list(each.variants)
        found, grid, names = self.rates_found(of), self.grid(of) or [self.config(of).learning_rate], list[str]()
        for variant in each.variants:
            rate, tried = grid[len(grid) // 2], grid
            if variant in found:
                rate, tried = found[variant], search_of(self.known(of), read_comparison(self.known(of)), variant).rates
            below, above = [other for other in tried if other < rate], [other for other in tried if other > rate]
            names += [trial_name(variant, other) for other in (*below[-1:], *above[:1])]
        return names

    def waiting(self, each: Comparison) -> list[str]:
        """Those of its variants whose learning rate is still to be found by another task."""
        task = self.benchmark.tasks[each.task]
        of = task.rates or task.neighbours_of
        if not of or (task.rates and self.options.preset == "smoke"):  # whose rates are the preset's
            return []
        found = self.rates_found(of)
        return [name for name in self.variants(each) if without_rate(name) not in found]

    def missing(self, each: Comparison) -> list[Job]:
        """Its runs that are not finished, but for trials of learning rates."""
        runs = [Run(name, seed) for seed in range(each.seeds) for name in self.variants(each)]
        return self._unfinished(each, self.known(each.task), runs)

    def trials(self, each: Comparison) -> list[Job]:
        """Trials of learning rates that are to come: the grid's. For those beyond it the first seed stands.

        The first seed needs no training, for it is the best trial.
        """
        names = [name for name in each.variants if name not in self.rates_found(each.task)]
        runs = [Run(trial_name(name, rate), SEED) for name in names for rate in self.grid(each.task)]
        return self._unfinished(each, self.known(each.task) / TRIALS, runs)

    def _unfinished(self, each: Comparison, at: Path, runs: list[Run]) -> list[Job]:
        steps = self.config(each.task).steps
        return [Job(run, run_directory(at, *run)) for run in runs if not is_finished(at, *run, steps)]

    def is_reported(self, each: Comparison) -> bool:
        """Whether its report is newer than what it is made of, or it was done elsewhere and packed."""
        root = self.root(each.task)
        return root != self.known(each.task) or is_reported(root, read_comparison(root))

    def objective(self, task: str) -> Objective:
        """What a task is trained for. Raises ValueError if its text is not here, or another than the frozen one."""
        if task not in self.objectives:
            config = self.config(task)
            data = load_data(config.data, self.options.data_dir, may_download=not self.options.dry_run)
            frozen = self.benchmark.texts.get(data.name)
            if frozen is not None and frozen.sha256 != data.sha256:
                raise ValueError(
                    f"--data {data.name} ({data.source}) has the sha256 {data.sha256}, and that of benchmark {NAME} is "
                    f"{frozen.sha256}; put the data set that the command `data` names in its place"
                )
            self.objectives[task] = make_objective(data, config)
        return self.objectives[task]

    def seconds(self, each: Comparison) -> dict[str, float]:
        """By variant, without its learning rate, those of a run, from trial steps now."""
        known = self.estimates.setdefault(each.task, {})
        if names := [name for name in each.variants if name not in known]:
            variants, config = map(get_variant, names), self.config(each.task)
            known |= estimated_seconds(variants, config, self.objective(each.task), self.device)
        return known

    def left(self, comparisons: list[Comparison], counted: set[Path]) -> tuple[int, float]:
        """How many runs are missing, trials among them, and the hours of one core; but for those counted before."""
        number, seconds = 0, 0.0
        for each in comparisons:
            if each.study == STUDY:
                jobs = [job for job in (*self.trials(each), *self.missing(each)) if job.directory not in counted]
                counted |= {job.directory for job in jobs}
                number += len(jobs)
                for job in jobs:
                    whole = self.seconds(each)[without_rate(job.run.variant)]
                    seconds += whole * share_left(job, self.config(each.task).steps)
        return number, seconds / 3600

    def print_plan(self, comparisons: list[Comparison]) -> None:
        """Print the stages with their runs and hours, and what models of each task cost."""
        self.console.print("measuring a training step of each variant of each task (one layer, few sequences)")
        stages = Table("stage", "task", "variants", "seeds", "runs left", "hours left")
        sizes = Table("task", "variant", "parameters", STATE, FLOPS, "a run")
        counted, shown, number, hours = set[Path](), set[tuple[str, str]](), 0, 0.0
        for each in comparisons:
            if each.study != STUDY:
                stages.add_row(each.stage, each.task, "-", "-", "-", "as `run speed` has it")
                continue
            runs, time = self.left([each], counted)
            number, hours = number + runs, hours + time
            counts = map(str, (len(self.variants(each)), each.seeds, runs))
            stages.add_row(each.stage, each.task, *counts, f"{time:.1f}")
            for name in (name for name in each.variants if (each.task, name) not in shown):
                self._add_size(sizes, each, name)
                shown.add((each.task, name))
        self.console.print(sizes)
        self.console.print(stages)
        self.console.print(
            f"{many(number, 'run')} left, about {hours:.1f} hours of one core, by trial steps on this machine now; "
            "of a search, one learning rate beyond the grid is counted",
            soft_wrap=True,
        )

    def _add_size(self, table: Table, each: Comparison, name: str) -> None:
        variant = get_variant(name)
        found = costs(variant, variant.config(self.config(each.task)), self.objective(each.task))
        state, flops = costs_in_words(found.state, found.flops)
        seconds = self.seconds(each)[without_rate(name)]
        table.add_row(each.task, name, f"{found.parameters:,}", state, flops, duration(seconds))

    def train(self, comparisons: list[Comparison], limit: TimeLimit | None) -> int:
        """Train what is missing until the time is up. Returns the exit status."""
        failed = list[str]()
        for task in dict.fromkeys(each.task for each in comparisons):  # a stop may have come before they were packed
            self._pack(task)
        for number, each in enumerate(comparisons, start=1):
            if each.study != STUDY or self.missing(each) or not self.is_reported(each):
                self.console.rule(f"{number} of {len(comparisons)}: {each.stage}: {each.task}")
                if self._do(each, limit) and each.task not in failed:
                    failed.append(each.task)
            if limit and limit.reached:
                break
        self.console.rule()
        for task in failed:
            self.console.print(f"{task} is not done; the same command tries it again")
        if limit and limit.reached:
            runs, hours = self.left(comparisons, set())
            self.console.print(f"{many(runs, 'run')} left, about {hours:.1f} hours of a core; next:", soft_wrap=True)
            self.console.print(f"  {command_line(self.options.words)}", soft_wrap=True)
        return EXIT_FAILED if failed else 0

    def _do(self, each: Comparison, limit: TimeLimit | None) -> int:
        """Train or measure what is missing of a comparison, and pack it. Returns the exit status."""
        if (known := self.known(each.task)) != self.root(each.task):
            _copy(known, self.root(each.task))
        try:
            status = self._train_one(each, limit) if each.study == STUDY else self._measure(each)
        except RunFailed as error:
            self.console.print(f"error: {printable(str(error))}", soft_wrap=True)
            status = EXIT_FAILED
        return self._pack(each.task) or status

    def _pack(self, task: str) -> int:
        """Pack what there is of a task, if that is asked for. Returns the exit status."""
        root = self.root(task)
        if self.options.pack and (root / RECORD).exists():
            try:
                return pack(root, self.options.pack / task, self.benchmark.tasks[task].weights)
            except (ValueError, OSError) as error:
                self.console.print(f"error: {task} is not packed: {printable(str(error))}", soft_wrap=True)
                return EXIT_FAILED
        return 0

    def _train_one(self, each: Comparison, limit: TimeLimit | None) -> int:
        self.objective(each.task)  # is its text the frozen one?
        task = self.benchmark.tasks[each.task]
        waiting = self.waiting(each)
        ready = [name for name in self.variants(each) if name not in waiting]
        if waiting:
            names = ", ".join(dict.fromkeys(map(without_rate, waiting)))
            of = task.rates or task.neighbours_of
            self.console.print(f"left out until {of} has found their learning rates: {names}", soft_wrap=True)
        if not ready:
            return EXIT_FAILED
        if limit:
            limit.of_run, limit.steps = self.seconds(each).copy(), self.config(each.task).steps
        # What its record names is the command of this task alone, always the same; of a submission the submission's.
        words = as_words({name: value for name, value in self.options.given.items() if name in RECORDED})
        submits = self.options.words[:1] == ("benchmark",)
        options = replace(
            self.options,
            variants=",".join(ready),
            seeds=each.seeds,
            learning_rates=self.benchmark.grid(each.task, self.options.preset) or None,
            out=self.root(each.task),
            words=self.options.words if submits else ("run", STUDY, f"--task={each.task}", *words),
        )
        rates = self.rates_found(task.rates) if task.rates else {}
        plan = make_plan(options, self.config(each.task), limit)
        status = run_training(
            replace(plan, variants=tuple(_at_rate(one, rates) for one in plan.variants), rate_seeds=1)
        )
        return EXIT_FAILED if waiting else status

    def _measure(self, each: Comparison) -> int:
        """Of a study that trains nothing."""
        given = {name: value for name, value in self.options.given.items() if name in MEASURED}
        out = self.root(each.task)
        words = ("run", each.study, *as_words(given), f"--out={out}")
        return run_measurements(make_plan(replace(self.options, study=each.study, out=out, given=given, words=words)))


def _copy(known: Path, root: Path) -> None:
    """Copy a task, what tells of its runs last: what a stop leaves of a copy is known to be none."""
    shutil.copytree(known, root, ignore=lambda place, _: [RECORD] if Path(place) == known else [], dirs_exist_ok=True)
    write_atomically(root / RECORD, (known / RECORD).read_bytes())


def _at_rate(variant: Variant, rates: Mapping[str, float]) -> Variant:
    """The variant at the learning rate that was found for it, if one was."""
    own = {"learning_rate": rates[variant.name]} if variant.name in rates else {}
    return replace(variant, settings={**variant.settings, **own})
