"""The run command: what it is to do, checked as far as that goes without PyTorch, and then done."""

from experiments.commands.finished import is_reported
from experiments.config import Config, check_range
from experiments.console import program, say_that_it_loads
from experiments.options import ALL, BENCHMARK, RunOptions, parse
from experiments.presets import get_preset
from experiments.records.record import read_comparison
from experiments.run.registry import check_resources
from experiments.run.time_limit import TimeLimit
from experiments.studies.registry import STUDIES
from experiments.trackers.registry import parse_trackers
from experiments.variants import parse_variants

MOST_SEEDS, MOST_WORKERS, MOST_PROCESSES = 1000, 4096, 4096


def run(options: RunOptions, limit: TimeLimit | None = None) -> int:
    """Run a study, or all of them. Returns the exit status. ``limit`` is that of several comparisons together.

    Raises ValueError for wrong use, when nothing was written, and RunFailed if it began and could not go on.
    """
    for name, value, most in (
        ("--seeds", options.seeds, MOST_SEEDS),
        ("--workers", options.workers, MOST_WORKERS),
        ("--nproc", options.nproc, MOST_PROCESSES),
    ):
        if value is not None:
            check_range(name, value, 1, most)
    if options.shard and options.nproc == 1:
        raise ValueError("--shard is given, and --nproc is 1; give --nproc 2 or more, or leave --shard out")
    if not options.run_timeout > 0:
        raise ValueError(f"--run-timeout is {options.run_timeout}; give a positive number of seconds")
    if options.study == ALL:
        say_that_it_loads("run all")
        from experiments.commands.run_all import run_all

        return run_all(options, lambda words: run(parse("run", RunOptions, words[1:], program())))
    for flag, its_own in {"--task": options.task, "--pack": options.pack}.items():
        if its_own is not None and options.study != BENCHMARK:
            raise ValueError(f"{flag} is for run benchmark, and {options.study} has no tasks; leave it out")
    if options.study == BENCHMARK:
        say_that_it_loads("run benchmark")
        from experiments.commands.run_benchmark import run_benchmark

        return run_benchmark(options)
    parse_trackers(options.tracker)
    check_resources(options.launcher, options.resources)
    if options.extend and options.dry_run:
        raise ValueError("--extend changes what is there, and --dry-run writes nothing; leave out one")
    if options.prepare and options.dry_run:
        raise ValueError("--prepare writes the directories of all runs, and --dry-run writes nothing; leave out one")
    if options.prepare and options.learning_rates:
        raise ValueError(
            "--prepare makes the directories of all runs at once, at rates that are known; leave out --learning-rates"
        )
    config = resolved_config(options)
    if options.variants is not None:
        parse_variants(options.variants)
    if is_reported(STUDIES[options.study], options, config):
        runs = len([*read_comparison(options.directory).runs])
        report = options.directory / "report.html"
        print(f"{runs} of {runs} runs are done already, and the report is newer: there is nothing to do ({report})")
        return 0
    say_that_it_loads(f"run {options.study}")
    if (of_data := get_preset(options.preset, STUDIES[options.study]).of_data) and "data" not in options.settings:
        from experiments.commands.run_data_sets import run_data_sets

        return run_data_sets(
            options, of_data, lambda words, limit: run(parse("run", RunOptions, words, program()), limit)
        )
    # From here on, because these load PyTorch.
    from experiments.commands.run_measurements import run_measurements
    from experiments.commands.run_training import run_training
    from experiments.records.store import check_directory

    check_directory(options.directory)
    study = STUDIES[options.study]
    if options.prepare and not study.variants:
        raise ValueError(f"--prepare is for studies that train, which {options.study} does not; leave it out")
    if not study.variants:
        return run_measurements(study, options)
    return run_training(study, options, config, limit=limit)


def resolved_config(options: RunOptions) -> Config:
    """What every run is trained with: the preset's settings, and before them those that were given."""
    return get_preset(options.preset, STUDIES[options.study]).config_of(options.settings)
