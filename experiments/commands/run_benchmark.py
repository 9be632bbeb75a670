"""``run benchmark``: what the benchmark still lacks is trained, in the order of its worth.

Each task is an ordinary comparison in a directory of its name; later stages merge variants and seeds into it. What is
done is not repeated, so the same command goes on after a stop.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from experiments.commands.plan import estimated_seconds
from experiments.commands.run_measurements import run_measurements
from experiments.commands.run_training import run_training
from experiments.config import Config
from experiments.console import command_line, duration, make_console, printable, program
from experiments.data.registry import load_data
from experiments.errors import EXIT_FAILED, RunFailed
from experiments.launch.launcher import Job, Run
from experiments.launch.time_limit import TimeLimit, parse_time
from experiments.options import RunOptions, as_words, given_options, parse
from experiments.records.record import is_finished, run_directory, run_status
from experiments.studies.benchmark.costs import costs
from experiments.studies.benchmark.definition import NAME, STUDY, Benchmark, Comparison, read_benchmark
from experiments.studies.registry import STUDIES
from experiments.training.chosen_objective import make_objective
from experiments.training.models import resolve_device
from experiments.training.objectives import Objective
from experiments.variants import get_variant, parse_variants

OPTIONS = (
    "--preset", "--task", "--variants", "--out", "--data-dir", "--device", "--workers", "--nproc", "--run-timeout",
    "--reuse", "--tracker", "--for", "--dry-run", "--plugin",
)  # fmt: skip
"""what it takes; what is trained, and how, is frozen"""
RECORDED = ("--preset", "--out", "--data-dir", "--device", "--plugin")
"""those of them that the record of a task names"""
PRESETS = ("cpu", "smoke")


def run_benchmark(options: RunOptions, clock: Callable[[], float] = time.monotonic) -> int:
    """Train what is missing, or print the plan. Returns the exit status. Raises ValueError for wrong use."""
    if refused := [flag for flag in given_options(options) if flag not in OPTIONS]:
        raise ValueError(
            f"{', '.join(refused)} would make other runs than those of benchmark {NAME}; it takes {', '.join(OPTIONS)}"
        )
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
    estimates: dict[tuple[str, str], float] = field(default_factory=dict)
    """by task and variant: seconds of a run"""

    def comparisons(self) -> list[Comparison]:
        """What is to be trained, in order; with ``--variants`` these, on all seeds of the tasks that are named."""
        tasks = tuple((self.options.task or "").split(",")) if self.options.task else ()
        found = self.benchmark.comparisons(self.options.preset, tasks)
        if self.options.variants is None:
            return found
        if not tasks:
            raise ValueError("--variants is given without --task; name the tasks that the variants are added to")
        names = tuple(variant.name for variant in parse_variants(self.options.variants))
        last = {each.task: each for each in found}
        return [replace(each, variants=names) for each in last.values()]

    def root(self, task: str) -> Path:
        default = Path("results/runs") / STUDY / (NAME if self.options.preset == "cpu" else self.options.preset)
        return (self.options.out or default) / task

    def config(self, task: str) -> Config:
        return self.benchmark.config(task, self.options.preset)

    def missing(self, each: Comparison) -> list[Run]:
        """Its runs that are not finished, in the order that they are trained in."""
        steps = self.config(each.task).steps
        runs = [Run(variant, seed) for seed in range(each.seeds) for variant in each.variants]
        return [run for run in runs if not is_finished(self.root(each.task), *run, steps)]

    def is_reported(self, each: Comparison) -> bool:
        """Whether its report was written after its last run."""
        root = self.root(each.task)
        ended = [run_status(root, variant, seed).time for seed in range(each.seeds) for variant in each.variants]
        report = root / "report.md"
        return report.exists() and report.stat().st_mtime >= max(filter(None, ended), default=math.inf)

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

    def seconds(self, each: Comparison, run: Run) -> float:
        """Estimated seconds of what is left of a run, from trial steps now."""
        if (each.task, run.variant) not in self.estimates:
            names = [name for name in each.variants if (each.task, name) not in self.estimates]
            variants, config = map(get_variant, names), self.config(each.task)
            found = estimated_seconds(variants, config, self.objective(each.task), self.device, math.inf)
            self.estimates |= {(each.task, name): seconds for name, seconds in found.items()}
        return self._limit_of(each.task).seconds(Job(run, run_directory(self.root(each.task), *run)))

    def _limit_of(self, task: str, limit: TimeLimit | None = None) -> TimeLimit:
        """The limit, which knows the estimates of a task now."""
        limit = limit or TimeLimit(0)
        limit.of_run = {name: seconds for (of, name), seconds in self.estimates.items() if of == task}
        limit.steps = self.config(task).steps
        return limit

    def left(self, comparisons: list[Comparison]) -> tuple[int, float]:
        """How many runs are missing, and the hours of one core that they take."""
        runs = {
            (each.task, run): each for each in reversed(comparisons) if self.trains(each) for run in self.missing(each)
        }
        return len(runs), sum(self.seconds(each, run) for (_, run), each in runs.items()) / 3600

    def trains(self, each: Comparison) -> bool:
        return each.study == STUDY

    def print_plan(self, comparisons: list[Comparison]) -> None:
        """Print the stages with their runs and hours, and what models of each task cost."""
        self.console.print("measuring a training step of each variant of each task (one layer, few sequences)")
        stages, sizes = Table("stage", "task", "variants", "seeds", "runs", "left", "hours left"), Table()
        for head in ("task", "variant", "parameters", "state numbers a layer", "MFLOPs a token", "a run"):
            sizes.add_column(head)
        counted, shown = set[tuple[str, Run]](), set[tuple[str, str]]()
        for each in comparisons:
            if not self.trains(each):
                stages.add_row(each.stage, each.task, "-", "-", "-", "-", "as `run speed` has it")
                continue
            every = {(each.task, Run(name, seed)) for seed in range(each.seeds) for name in each.variants} - counted
            runs = [run for run in self.missing(each) if (each.task, run) in every]
            counted |= every
            hours = sum(self.seconds(each, run) for run in runs) / 3600
            counts = map(str, (len(each.variants), each.seeds, len(every), len(runs)))
            stages.add_row(each.stage, each.task, *counts, f"{hours:.1f}")
            for name in (name for name in each.variants if (each.task, name) not in shown):
                self._add_size(sizes, each, name)
                shown.add((each.task, name))
        self.console.print(sizes)
        self.console.print(stages)
        number, hours = self.left(comparisons)
        self.console.print(
            f"{number} runs are left, about {hours:.1f} hours of one core, by trial steps on this machine now. Nothing "
            "was trained or written.",
            soft_wrap=True,
        )

    def _add_size(self, table: Table, each: Comparison, name: str) -> None:
        variant, config = get_variant(name), self.config(each.task)
        found = costs(variant, variant.config(config), self.objective(each.task))
        state = "-" if found.state is None else f"{found.state:,}"
        flops = "-" if found.flops is None else f"{found.flops / 1e6:.2f}"
        self.seconds(each, Run(name, 0))
        table.add_row(each.task, name, f"{found.parameters:,}", state, flops, duration(self.estimates[each.task, name]))

    def train(self, comparisons: list[Comparison], limit: TimeLimit | None) -> int:
        """Train what is missing until the time is up. Returns the exit status."""
        failed = list[str]()
        for number, each in enumerate(comparisons, start=1):
            if self.trains(each) and not self.missing(each) and self.is_reported(each):
                continue
            self.console.rule(f"{number} of {len(comparisons)}: {each.stage}: {each.task}")
            try:
                status = self._train_one(each, limit) if self.trains(each) else self._measure(each)
            except RunFailed as error:
                self.console.print(f"error: {printable(str(error))}", soft_wrap=True)
                status = EXIT_FAILED
            if status and each.task not in failed:
                failed.append(each.task)
            if limit and limit.reached:
                break
        self.console.rule()
        for name in failed:
            self.console.print(f"{name} is not done; the same command tries it again")
        if limit and limit.reached:
            runs, hours = self.left(comparisons)
            self.console.print(f"{runs} runs are left, about {hours:.1f} hours of one core; to go on:", soft_wrap=True)
            self.console.print(f"  {command_line(self.options.words)}", soft_wrap=True)
        return EXIT_FAILED if failed else 0

    def _train_one(self, each: Comparison, limit: TimeLimit | None) -> int:
        self.objective(each.task)  # is its text the frozen one?
        if limit:
            for run in self.missing(each):
                self.seconds(each, run)
            self._limit_of(each.task, limit)
        # What its record names is the command of this task alone, always the same.
        words = as_words({flag: value for flag, value in given_options(self.options).items() if flag in RECORDED})
        options = replace(
            self.options,
            variants=",".join(each.variants),
            seeds=each.seeds,
            out=self.root(each.task),
            words=("run", STUDY, f"--task={each.task}", *words),
        )
        return run_training(STUDIES[STUDY], options, self.config(each.task), self.benchmark.rates_of(each.task), limit)

    def _measure(self, each: Comparison) -> int:
        """Of a study that trains nothing."""
        words = as_words({f"--{name}": getattr(self.options, name) for name in ("preset", "device", "plugin")})
        options = parse("run", RunOptions, [each.study, *words, f"--out={self.root(each.task)}"], program())
        return run_measurements(STUDIES[each.study], options)
