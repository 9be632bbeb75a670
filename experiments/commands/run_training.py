"""The run command for a study that trains: from a plan to a comparison on disk."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from experiments.commands.describe import describe, note_plugins
from experiments.commands.estimate import estimated_seconds, print_head, print_plan, recorded_seconds, runs_by_seed
from experiments.commands.place import Place, place_of
from experiments.commands.plan import Plan
from experiments.config import Config
from experiments.console import command_line, make_console, many
from experiments.data.registry import load_data
from experiments.errors import EXIT_FAILED
from experiments.objects import Run
from experiments.records import environment, store
from experiments.records.files import remove_leftovers
from experiments.records.lock import check_free, only_one_run
from experiments.records.record import TRIALS, is_finished, read_comparison, run_directory, run_status, write_record
from experiments.records.schema import Comparison, Origin
from experiments.report.report import result_table, write_report
from experiments.run.display import Display
from experiments.run.extend import as_it_was, extend, extended_config, was_stopped
from experiments.run.loop import Ended, follow
from experiments.run.plan import Training, prepare_runs
from experiments.run.reuse import ReusableRun, reusable_runs, take_over
from experiments.run.time_limit import TimeLimit
from experiments.study import resolve
from experiments.trackers.registry import parse_trackers
from experiments.train import models, tuning
from experiments.train.chosen_objective import make_objective
from experiments.train.objectives import Objective, floors_of
from experiments.train.tuning import untuned
from experiments.variants import get_variant, without_rate

Failures = dict[tuple[Path, Run], Ended]
"""by comparison's directory and run, trials of learning rates among them"""


def run_training(plan: Plan) -> int:
    """Train what is missing of a comparison, measure it, write its report, print its table. Returns the exit status.

    Raises ValueError for wrong use; then nothing was written.
    """
    options, root, console = plan.options, plan.root, make_console()
    if options.extend:
        plan = dataclasses.replace(plan, config=extended_config(root, plan.config, options.settings))
    place = place_of(plan)
    data = load_data(plan.config.data, options.data_dir, options.data_file, may_download=not options.dry_run)
    objective = make_objective(data, plan.config, root)
    comparison = describe(plan, objective, place.device)
    reusable = {} if options.reuse is None else reusable_runs(options.reuse, comparison.notes)
    if options.extend:
        _extend(plan, comparison, console)
    # What cannot be merged is refused before anything is written.
    merged = store.with_baseline(store.merge_with_existing(root, comparison), options.baseline)
    tuning.check_trials(root, merged)
    if options.dry_run:
        if place.device.type == "cuda":
            models.resolve_device("cuda")  # whose step is to be measured
        check_free(root)
        print_plan(console, merged, plan, objective, place)
        return 0
    store.make_directory(root)
    trainer = _Trainer(plan, console, objective, place, reusable)
    with only_one_run(root, console):
        comparison = store.merge_with_existing(root, comparison)  # again: another run may have ended in between
        print_head(console, comparison, data, place)
        with store.failing_after_it_began(root):
            return _prepare(trainer, comparison) if options.prepare else _train_and_report(trainer, comparison)


def _extend(plan: Plan, comparison: Comparison, console: Console) -> None:
    """Give the comparison that is there the plan's steps. Raises ValueError, before it writes, if that cannot be."""
    if was_stopped(plan.root, plan.config):
        with only_one_run(plan.root, console):
            extend(plan.root, plan.config)
    checked = store.merge_with_existing(plan.root, as_it_was(plan.root, comparison))
    tuning.check_trials(plan.root, store.with_baseline(checked, plan.options.baseline))
    with only_one_run(plan.root, console):
        extend(plan.root, plan.config)


@dataclass
class _Trainer:
    """Trains the runs of a comparison, or of its trials of learning rates."""

    plan: Plan
    console: Console
    objective: Objective
    place: Place
    reusable: dict[str, ReusableRun]
    plugins: list[Origin] = field(default_factory=list)
    failures: Failures = field(default_factory=dict)

    def begin(self, comparison: Comparison) -> None:
        """Write what the runs are of."""
        self.plugins = note_plugins(comparison, self.plan.options)
        # First, and before the trials: trained anew, a tokenizer can be another one, which would be refused.
        self.objective.save(self.plan.root)
        write_record(self.plan.root / "comparison.json", comparison)

    def training(self, at: Path, what: Comparison) -> Training:
        """What the runs of a comparison share."""
        options = self.plan.options
        return Training(
            at,
            Config.of(what.config),
            options.data_dir,
            options.data_file,
            self.objective.corpus.sha256,
            self.place.device.type,
            {variant.name: variant.of_all_layers for variant in what.variants},
            nproc=options.nproc,
            shard=options.shard,
            plugins=self.plugins,
            initial_weights=what.initial_weights,
            trackers=parse_trackers(options.tracker),
        )

    def train(self, at: Path, what: Comparison, runs: list[Run]) -> None:
        """Train those of a comparison's runs that are not done."""
        training = self.training(at, what)
        self.objective.save(at)
        taken = take_over(training, runs, self.reusable)
        for run, there in taken.items():
            self.console.print(f"{run}: taken over from {there.root} ({there.run})", soft_wrap=True)
        done = sum(map(training.is_finished, runs))
        if done:
            self.console.print(f"{done} of {len(runs)} runs are done already")
        if not runs:
            return
        if limit := self.plan.limit:
            self._estimate(limit, training, [run for run in runs if not training.is_finished(run)])
            # What has failed is tried again when the others have had their turn.
            runs = sorted(runs, key=lambda run: run_status(at, *run).state == "failed")
        silence = self.plan.options.run_timeout
        with Display(self.console, runs, done, training.config.steps, self.objective.loss_unit) as display:
            for event in follow(training, runs, self.place.launcher, silence, limit):
                display.show(event)
                had_no_time = limit is not None and limit.reached and getattr(event, "state", "") == "queued"
                if isinstance(event, Ended) and event.state != "done" and not had_no_time:
                    self.failures[at, event.run] = event

    def _estimate(self, limit: TimeLimit, training: Training, runs: Sequence[Run]) -> None:
        """Let the limit know how long these take: what runs took before on this machine, or else by trial steps."""
        limit.steps = training.config.steps
        every = dict.fromkeys(without_rate(run.variant) for run in runs)
        if read_comparison(self.plan.root).machine == environment.machine(self.place.device):
            limit.of_run = recorded_seconds(self.plan.root, [*every], training.config.steps) | limit.of_run
        if names := [name for name in every if name not in limit.of_run]:
            self.console.print("estimating how long runs take, from a few trial steps of each variant")
            variants = map(get_variant, names)
            limit.of_run |= estimated_seconds(variants, training.config, self.objective, self.place.device)

    def tell_what_is_left(self, comparison: Comparison) -> None:
        """Say how many runs there was no time for, if any."""
        if not (self.plan.limit and self.plan.limit.reached):
            return
        failed, steps = {run for _, run in self.failures}, comparison.config["steps"]
        trials = tuning.trials_left(self.plan.root, comparison)
        # The first seeds of a variant that waits for its rate are trained as trials.
        of_trials = {(name, seed) for name in trials for seed in comparison.seeds[: max(1, comparison.rate_seeds)]}
        runs = [run for run in {*comparison.runs} - failed - of_trials if not is_finished(self.plan.root, *run, steps)]
        left = f"{many(len(runs) + sum(trials.values()), 'run')}{' or more' * bool(trials)}"
        told = f"{left} left that there was no time for (--for); the same command goes on"
        self.console.print(told, soft_wrap=True)

    def tell_failures(self) -> None:
        for (at, run), ended in self.failures.items():
            self.console.print(f"{ended.state}: {run}: {ended.reason or ended.state}", soft_wrap=True)
            self.console.print(f"  its log: {run_directory(at, *run) / 'log.txt'}", soft_wrap=True)
        if self.failures:
            self.console.print("the same command tries what failed again")


def _prepare(trainer: _Trainer, comparison: Comparison) -> int:
    """Write what every run needs that is not done, for the train command. Returns the exit status."""
    if waiting := untuned(comparison):
        raise ValueError(f"{waiting[0].name} has no learning rate yet; give the command without --prepare")
    root, console = trainer.plan.root, trainer.console
    trainer.begin(comparison)
    jobs = prepare_runs(trainer.training(root, comparison), [Run(*run) for run in comparison.runs])
    console.print(f"{many(len(jobs), 'run')} prepared; each has a command of its own, such as", soft_wrap=True)
    console.print(*(f"  {command_line(['train', str(job.directory)])}" for job in jobs[:1]), soft_wrap=True)
    console.print("when all have ended, the same command without --prepare writes the report", soft_wrap=True)
    return 0


def _train_and_report(trainer: _Trainer, comparison: Comparison) -> int:
    root, console = trainer.plan.root, trainer.console
    remove_leftovers(root)
    trainer.begin(comparison)
    for note in (*comparison.notes, *_short_of_the_peak(trainer.plan.config)):
        console.print(f"note: {note}", soft_wrap=True)
    _tune(trainer, comparison)
    if (root / TRIALS).is_dir():  # those at a variant's best rate are its runs with their seeds
        trainer.reusable = reusable_runs(root / TRIALS, comparison.notes) | trainer.reusable
    waiting = untuned(comparison)
    ready = replace(comparison, variants=[variant for variant in comparison.variants if variant not in waiting])
    if ready.variants:
        trainer.train(root, ready, runs_by_seed(ready))
    if leaves_the_report(trainer):
        trainer.tell_failures()
        console.print("the GPU's time is for runs: the same command without --for measures them and writes the report")
    else:
        report = _measure_and_report(trainer, comparison)
        console.print(result_table(root))
        trainer.tell_failures()
        console.print(f"report: {report}", soft_wrap=True)
    trainer.tell_what_is_left(comparison)
    return EXIT_FAILED if trainer.failures else 0


def leaves_the_report(trainer: _Trainer) -> bool:
    """Whether a GPU's time is limited: then it is for runs, and floors, which take minutes, and all else come later."""
    return trainer.place.device.type == "cuda" and trainer.plan.limit is not None


def _measure_and_report(trainer: _Trainer, comparison: Comparison) -> Path:
    root, study, objective = trainer.plan.root, trainer.plan.study, trainer.objective
    config = Config.of(comparison.config)
    trainer.console.print("measuring the trained models and writing the report")
    # Now and not before: of long runs they take a while, which training need not wait for.
    comparison.floors = floors_of(objective, config, comparison.every_floor)
    # Of what could not be measured before, some may be there now.
    comparison.notes = [note for note in comparison.notes if note.startswith(store.CONTINUED)]
    otherwise = store.trained_otherwise(root, comparison)
    otherwise += store.trained_otherwise(root / TRIALS, tuning.trials(root, comparison))
    measured = resolve(study.measure)(root, comparison, objective)
    store.add_notes(comparison, [*_short_of_the_peak(config), *otherwise, *measured])
    write_record(root / "comparison.json", comparison)
    return write_report(root, study)


def _short_of_the_peak(config: Config) -> list[str]:
    if config.warmup_steps <= config.steps:
        return []
    return [
        f"the warm-up is {config.warmup_steps:,} steps and the run {config.steps:,}, so the learning rate ends at "
        f"{config.steps / config.warmup_steps:.0%} of its peak; give a smaller --warmup-steps to reach it"
    ]


def _tune(trainer: _Trainer, comparison: Comparison) -> None:
    """Find the learning rate of every variant that is to have its own.

    What is to be tried next follows from the trials on disk, so that the search goes on where it was stopped.
    """
    variants = untuned(comparison)
    if not variants:
        return
    root, at = trainer.plan.root, trainer.plan.root / TRIALS
    rates = ", ".join(map(str, comparison.learning_rates))
    where = f"{rates}{' and beyond' if comparison.rate_seeds else ''}"
    trainer.console.print(f"learning rates: {many(len(variants), 'variant')} at {where}", soft_wrap=True)
    store.make_directory(at)
    while True:
        trials = tuning.trials(root, comparison)
        write_record(at / "comparison.json", trials)
        runs = [Run(*trial) for trial in tuning.missing(root, comparison)]
        runs = [run for run in runs if (at, run) not in trainer.failures]
        if not runs or (trainer.plan.limit and trainer.plan.limit.reached):
            break
        trainer.train(at, trials, runs)
    _choose_rates(trainer.console, root, comparison)


def _choose_rates(console: Console, root: Path, comparison: Comparison) -> None:
    """Choose the learning rate of every variant whose trials have ended.

    A rate at which a variant diverges is not its best. If it does at all of them, it keeps the comparison's. Either way
    the rate is recorded with the variant, so that all its runs have the same, now and when the comparison goes on. A
    variant one of whose trials was killed or failed otherwise has to wait until that is repeated.
    """
    for variant in untuned(comparison):
        search = tuning.search_of(root, comparison, variant.name)
        if search.missing:
            console.print(f"  {variant.name}: not yet, for a trial failed or was not made", soft_wrap=True)
            continue
        rate = comparison.config["learning_rate"] if search.rate is None else search.rate
        variant.settings = variant.settings | {"learning_rate": rate}
        variant.not_tuned = search.not_tuned if comparison.rate_seeds else ""
        remark = f"not tuned: {variant.not_tuned}" if variant.not_tuned else ""
        remark = "the comparison's: it diverged at all of them" if search.rate is None else remark
        console.print(f"  {variant.name}: {rate}{f' ({remark})' if remark else ''}", soft_wrap=True)
    write_record(root / "comparison.json", comparison)
