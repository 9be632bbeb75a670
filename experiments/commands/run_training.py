"""The run command for a study that trains: from its options to a comparison on disk."""

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from msgspec.structs import replace
from rich.console import Console

from experiments.commands.plan import nondeterministic, note_plugins, print_head, print_plan
from experiments.config import Config
from experiments.console import available_cores, command_line, make_console
from experiments.data.registry import load_data
from experiments.errors import EXIT_FAILED
from experiments.launch.launcher import Launcher, Run
from experiments.launch.progress import Display
from experiments.launch.registry import LAUNCHERS
from experiments.launch.reuse import Trained, other_code, take_over, trained_runs
from experiments.launch.runs import Failure, Training, train_runs
from experiments.options import RunOptions
from experiments.presets import get_preset
from experiments.records import store
from experiments.records.files import remove_leftovers
from experiments.records.lock import check_free, only_one_run
from experiments.records.record import is_finished, run_directory, write_record
from experiments.records.schema import Comparison, UnrecordedRun, VariantRecord
from experiments.report.report import remove_unfinished_reports, result_table, write_report
from experiments.study import Study, resolve
from experiments.training import models, tuning
from experiments.training.chosen_objective import make_objective
from experiments.training.objectives import Objective
from experiments.training.tuning import parse_rates, untuned
from experiments.variants import RANDOM_KERNELS, SIZES, Variant, check_variants_differ, parse_variants


def run_training(study: Study, options: RunOptions, config: Config) -> int:
    """Train what is missing of a comparison, measure it, write its report, print its table. Returns the exit status.

    Raises ValueError for wrong use; then nothing was written.
    """
    seeds = get_preset(options.preset, study).seeds if options.seeds is None else options.seeds
    variants = parse_variants(",".join(study.variants) if options.variants is None else options.variants)
    rates = [] if options.learning_rates is None else parse_rates(options.learning_rates)
    root = options.directory
    device = models.resolve_device(options.device)
    workers = options.workers
    if workers is None:
        workers = 1 if device.type == "cuda" else max(1, available_cores() // config.threads)
    launcher = LAUNCHERS[options.launcher](workers=workers, run_timeout=options.run_timeout)
    configs = {variant.name: variant.config(config) for variant in variants}
    check_variants_differ(variants, config)
    if device.type == "cpu":
        models.check_memory(max(configs.values(), key=lambda variant: variant.dim), min(workers, seeds * len(variants)))
    corpus = load_data(config.data, options.data_dir, options.data_file, may_download=not options.dry_run)
    objective = make_objective(corpus, config, root)
    parameters = {
        variant.name: _parameters(variant, configs[variant.name], objective.of(variant.settings))
        for variant in variants
    }
    sizes = {name: tuple(getattr(variant, size) for size in SIZES) for name, variant in configs.items()}
    for size in {*sizes.values()}:
        models.check_parameters_match({name: parameters[name] for name in sizes if sizes[name] == size})
    passed_over: list[str] = []
    reusable = {} if options.reuse is None else trained_runs(options.reuse, passed_over)

    console = make_console()
    comparison = store.new_comparison(root, options.study, options.preset, command_line(options.words), device)
    comparison.config = dataclasses.asdict(config)
    comparison.variants = [_describe(variant, configs[variant.name], parameters[variant.name]) for variant in variants]
    comparison.seeds = list(range(seeds))
    comparison.data = [objective.corpus.describe()]
    comparison.objective = objective.describe()
    windows = {"validation": config.evaluation_windows, "test": config.test_windows}
    comparison.evaluated_windows = {split: len(objective.windows(split, most)[0]) for split, most in windows.items()}
    comparison.learning_rates = rates
    comparison.notes += passed_over
    # What cannot be merged is refused before anything is written.
    tuning.check_trials(root, store.merge_with_existing(root, comparison))
    if options.dry_run:
        check_free(root)
        print_plan(console, comparison, variants, config, objective, device, workers)
        return 0
    store.make_directory(root)
    with only_one_run(root, console):
        comparison = store.merge_with_existing(root, comparison)  # again: another run may have ended in between
        print_head(console, comparison, objective.corpus, device, workers)
        with store.failing_after_it_began(root):
            return _train_and_report(console, study, root, comparison, options, objective, device, launcher, reusable)


def _train_and_report(
    console: Console,
    study: Study,
    root: Path,
    comparison: Comparison,
    options: RunOptions,
    objective: Objective,
    device: torch.device,
    launcher: Launcher,
    reusable: dict[str, Trained],
) -> int:
    remove_leftovers(root)
    remove_unfinished_reports(root)
    comparison.unrecorded = []
    plugins = note_plugins(comparison, options)
    write_record(root / "comparison.json", comparison)
    config = Config(**comparison.config)

    def train(at: Path, what: Comparison) -> dict[Run, Failure]:
        """Train what is missing of a comparison."""
        objective.save(at)
        settings = {variant.name: variant.settings for variant in what.variants}
        data = options.data_dir, options.data_file, objective.corpus.sha256
        training = Training(at, config, *data, device.type, settings, plugins)
        runs = [Run(variant.name, seed) for seed in what.seeds for variant in what.variants]
        taken = take_over(training, runs, reusable)
        for run, there in taken.items():
            console.print(f"{run}: taken over from {there.root} ({there.run})", soft_wrap=True)
        sentence = other_code(taken, "runs" if at == root else "trials of learning rates")
        store.add_notes(comparison, [] if sentence is None else [sentence])
        done = sum(map(training.is_finished, runs))
        if done:
            console.print(f"{done} of {len(runs)} runs are done already")
        with Display(console, runs, done, config.steps) as display:
            return train_runs(training, runs, launcher, display)

    for note in (*comparison.notes, *_short_of_the_peak(config)):
        console.print(f"note: {note}", soft_wrap=True)
    failures = _tune(console, root, comparison, train)
    runs = list(comparison.runs)
    if device.type == "cuda" and not all(is_finished(root, *run, config.steps) for run in runs):
        comparison.nondeterministic = nondeterministic(comparison, config, objective, device)
        write_record(root / "comparison.json", comparison)
    if (root / tuning.DIRECTORY).is_dir():
        reusable = trained_runs(root / tuning.DIRECTORY, comparison.notes) | reusable
    waiting = untuned(comparison)
    ready = [variant for variant in comparison.variants if variant not in waiting]
    if ready:
        failures |= {(root, run): failure for run, failure in train(root, replace(comparison, variants=ready)).items()}
    comparison.unrecorded = [
        UnrecordedRun(variant=run.variant, seed=run.seed, state=failure.ended.state, reason=failure.reason)
        for (at, run), failure in failures.items()
        if not failure.recorded and at == root
    ]

    console.print("measuring the trained models and writing the report")
    # Of what could not be measured before, some may be there now.
    comparison.notes = [note for note in comparison.notes if note.startswith(store.CONTINUED)]
    store.add_notes(comparison, [*_short_of_the_peak(config), *resolve(study.measure)(root, comparison, objective)])
    write_record(root / "comparison.json", comparison)
    report = write_report(root, study)
    console.print(result_table(root))
    for (at, run), failure in failures.items():
        console.print(f"{failure.ended.state}: {run}: {failure.reason}", soft_wrap=True)
        console.print(f"  its log: {run_directory(at, *run) / 'log.txt'}", soft_wrap=True)
    if failures:
        console.print("the same command tries what failed again")
    console.print(f"report: {report}", soft_wrap=True)
    return EXIT_FAILED if failures else 0


def _short_of_the_peak(config: Config) -> list[str]:
    if config.warmup_steps <= config.steps:
        return []
    return [
        f"the warm-up is {config.warmup_steps:,} steps and the run {config.steps:,}, so the learning rate ends at "
        f"{config.steps / config.warmup_steps:.0%} of its peak; give a smaller --warmup-steps to reach it"
    ]


def _tune(
    console: Console, root: Path, comparison: Comparison, train: Callable[[Path, Comparison], dict[Run, Failure]]
) -> dict[tuple[Path, Run], Failure]:
    """Find the learning rate of every variant that is to have its own; returns the trials that failed, by run.

    A rate at which a variant diverges is not its best. If it does at all of them, it keeps the comparison's. Either way
    the rate is recorded with the variant, so that all its runs have the same, now and when the comparison goes on. A
    variant one of whose trials was killed or failed otherwise has to wait until that is repeated.
    """
    variants = untuned(comparison)
    if not variants:
        return {}
    at = root / tuning.DIRECTORY
    rates = ", ".join(map(str, comparison.learning_rates))
    console.print(f"learning rates: {len(variants)} variants at {rates}, seed {tuning.SEED}", soft_wrap=True)
    store.make_directory(at)
    write_record(at / "comparison.json", tuning.trials(comparison))
    failures = train(at, tuning.trials(replace(comparison, variants=variants)))
    for variant in variants:
        if not tuning.have_ended(root, comparison, variant.name):
            console.print(f"  {variant.name}: not yet, for a trial failed", soft_wrap=True)
            continue
        rate = tuning.choose(root, comparison, variant.name)
        remark = "" if rate is not None else " (the comparison's: it diverged at all of them)"
        rate = comparison.config["learning_rate"] if rate is None else rate
        variant.settings = variant.settings | {"learning_rate": rate}
        console.print(f"  {variant.name}: {rate}{remark}", soft_wrap=True)
    write_record(root / "comparison.json", comparison)
    return {(at, run): failure for run, failure in failures.items()}


def _parameters(variant: Variant, config: Config, objective: Objective) -> tuple[int, int]:
    """As count_parameters; from models of one and two layers, because all layers have equally many."""
    # Only what changes the number: of hundreds of variants most differ in something else.
    fewer = variant.kernel in RANDOM_KERNELS and not variant.position.startswith("selective")
    features = 2 if fewer else config.num_features
    changing = ("dim", "heads", "context", "redraw_every", "dropout", "decay", "local_conv", "short_conv")
    kept = {name: getattr(config, name) for name in changing}
    sizes = Config(**kept, num_features=features)
    by_layers = [dataclasses.replace(sizes, layers=layers) for layers in (1, 2)]
    one, two = (_count(variant.kernel, variant.position, sizes, objective) for sizes in by_layers)
    return one[0] + (config.layers - 1) * (two[0] - one[0]), one[1]


@lru_cache(maxsize=1024)
def _count(kernel: str, position: str, config: Config, objective: Objective) -> tuple[int, int]:
    with torch.device("meta"):
        return models.count_parameters(models.build_model(Variant("", kernel, position, "", ""), config, 0, objective))


def _describe(variant: Variant, config: Config, parameters: tuple[int, int]) -> VariantRecord:
    total, position_table = parameters
    record = VariantRecord(**vars(variant), parameters=total, position_parameters=position_table)
    if variant.position in ("rope-after", "selective-after"):
        record.description += f" The denominator is {config.denominator}."
    return record
