"""What ``run`` runs: one comparison, one of each data set of a study, or every reference.

Each is a run of its own: what is done is not repeated, so the same command goes on after a stop.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.commands.plan import MEASURED, Plan, check_together, data_sets_of, make_plan, nothing_to_do
from experiments.console import command_line, make_console, printable, say_that_it_loads
from experiments.data.files import resolve_data_dir
from experiments.data.registry import DATA_SETS, load_data
from experiments.errors import EXIT_FAILED, RunFailed
from experiments.extensions import choices
from experiments.options import ALL, BENCHMARK, RunOptions, as_words, run_options
from experiments.presets import PRESETS, size_of
from experiments.run.time_limit import TimeLimit, parse_time
from experiments.studies.registry import STUDIES

EVERYWHERE = tuple("preset data_dir device workers nproc shard run_timeout launcher resources dry_run plugin".split())
"""options of ``run all``; they go to every run"""
RUNS = Path("results/runs")


def run_study(options: RunOptions) -> int:
    """Run a study, or all of them. Returns the exit status; raises as ``run_plan``."""
    if options.study == ALL:
        return run_all(options)
    if options.study == BENCHMARK:
        say_that_it_loads("run benchmark")
        from experiments.commands.run_benchmark import run_benchmark

        return run_benchmark(options)
    if of_data := data_sets_of(options):
        return run_data_sets(options, of_data)
    return run_plan(make_plan(options))


def run_plan(plan: Plan) -> int:
    """Make a comparison, if there is anything to do. Returns the exit status.

    Raises ValueError for wrong use, when nothing was written, and RunFailed if it began and could not go on.
    """
    if said := nothing_to_do(plan):
        print(said)
        return 0
    say_that_it_loads(f"run {plan.options.study}")
    # From here on, because these load PyTorch.
    from experiments.commands.run_measurements import run_measurements
    from experiments.commands.run_training import run_training
    from experiments.records.store import check_directory

    check_directory(plan.root)
    return run_training(plan) if plan.study.variants else run_measurements(plan)


def _exit_status(console: Console, failed: list[str]) -> int:
    """That of several comparisons; says which of them have ``failed``."""
    for name in failed:
        console.print(f"{name} is not done; the same command tries it again")
    return EXIT_FAILED if failed else 0


def run_all(options: RunOptions) -> int:
    """Run every reference, or at another preset than cpu every study with its own variants. Returns the exit status.

    A run that several of them need, with all the same, is trained once. Raises ValueError if an option is not one of
    ``EVERYWHERE``.
    """
    options.refuse_others(EVERYWHERE, "is for one study, and `run all` runs each by the command that its claims name")
    check_together(options)
    if size_of(options.preset) not in PRESETS:
        raise ValueError(f"--preset is {options.preset}; {choices(options.preset, [*PRESETS])}")
    from experiments.judge import references  # not for --help: it loads SciPy

    console, failed = make_console(), list[str]()
    names = list(references.REFERENCES) if options.preset == "cpu" else [name for name in STUDIES if name != BENCHMARK]
    if not options.dry_run:
        RUNS.mkdir(parents=True, exist_ok=True)  # from the first run on, so that every command is the same again
    for number, name in enumerate(names, start=1):
        console.rule(f"{number} of {len(names)}: {name}")
        try:
            each = _options_of(name, options)
            console.print(command_line(each.words), soft_wrap=True)
            if run_study(each):
                failed.append(name)
        except (RunFailed, ValueError) as error:  # its data are not here, say: that keeps no other from running
            console.print(f"error: {printable(str(error))}", soft_wrap=True)
            failed.append(name)
    console.rule()
    console.print(f"{len(names) - len(failed)} of {len(names)} are done")
    return _exit_status(console, failed)


def _options_of(name: str, options: RunOptions) -> RunOptions:
    """Those of the command that makes a reference, or a study at another preset, with those of ``run all``."""
    from experiments.judge import references

    words = references.arguments(name)
    if options.preset != "cpu":
        words = ["run", name, "--out", str(RUNS / options.preset / name)]
        if "initial_weights" in (STUDIES[name].presets or {}).get(size_of(options.preset), {}):
            words += ["--initial-weights", str(RUNS / options.preset / "mlm")]
    trains = bool(STUDIES[words[1]].variants)
    reuse = ["--reuse", str(RUNS)] if trains and RUNS.is_dir() else []
    pairs = [*words[2:], *reuse]
    own = {option.removeprefix("--"): value for option, value in zip(pairs[::2], pairs[1::2], strict=True)}
    given = {option: value for option, value in options.given.items() if trains or option in MEASURED}
    return run_options(words[1], own | given, (*words, *as_words(given), *reuse))


def run_data_sets(options: RunOptions, data_sets: Mapping[str, Mapping[str, Any]]) -> int:
    """Run a study on every data set that can be had, each in a directory of its name. Returns the exit status.

    Raises ValueError for wrong use, if the directory is that of a comparison of one data set, if a data set is here and
    damaged, and if none can be had.
    """
    limit = None if options.for_ is None else TimeLimit(parse_time(options.for_))
    root, console, failed = options.directory, make_console(), list[str]()
    if (root / "comparison.json").exists():
        raise ValueError(f"--out {root} holds one comparison, and there is to be one of each data set; give another")
    plans = {name: _plan_of(name, options, limit) for name in data_sets}
    left_out, missing = _left_out(plans, data_sets)
    for number, (name, plan) in enumerate(plans.items(), start=1):
        console.rule(f"{number} of {len(plans)}: {name}")
        if name in left_out:
            console.print(f"left out: {left_out[name]}", soft_wrap=True)
            continue
        console.print(command_line(plan.options.words), soft_wrap=True)
        if limit:
            limit.of_run = {}  # on another data set a run takes another time
        if run_plan(plan):
            failed.append(name)
        if limit and limit.reached:
            break
    console.rule()
    if not options.dry_run:
        console.print(f"report of all: {_report_of_all(root)}", soft_wrap=True)
    for name in missing:
        console.print(f"{name} was left out, because it is not here; the command `data` tells how to get it")
    if limit and limit.reached:
        console.print("the time is up (--for); the same command goes on")
    return _exit_status(console, failed)


def _plan_of(name: str, options: RunOptions, limit: TimeLimit | None) -> Plan:
    out = options.directory / name
    settings, words = {**options.settings, "data": name}, (*options.words, f"--data={name}", f"--out={out}")
    return make_plan(replace(options, settings=settings, out=out, words=words), limit=limit)


def _left_out(
    plans: Mapping[str, Plan], data_sets: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, str], list[str]]:
    """Why some are left out, by name, and those of them that cannot be had.

    Raises ValueError if one is here and damaged, or none can be had.
    """
    left_out, missing = dict[str, str](), list[str]()
    for name, plan in plans.items():
        options, other = plan.options, data_sets[name].get("instead_of")
        if other in plans and other not in left_out:
            left_out[name] = f"{other} is here"
            continue
        try:
            if not nothing_to_do(plan):
                load_data(name, options.data_dir, may_download=not options.dry_run)
        except ValueError as error:
            if DATA_SETS[name].find(resolve_data_dir(options.data_dir)) is not None:
                raise
            left_out[name] = printable(str(error))
            missing.append(name)
    if len(left_out) == len(plans):
        raise ValueError(f"none of {', '.join(left_out)} is here; the command `data` tells how to get them")
    return left_out, missing


def _report_of_all(root: Path) -> Path:
    """The page over all, made again if one of them is newer."""
    page = root / "index.html"
    reports = [path.stat().st_mtime_ns for path in root.glob("*/report.html")]
    if not page.exists() or page.stat().st_mtime_ns < max(reports, default=0):
        from experiments.report.overview import write_overview

        return write_overview(root, STUDIES, lambda _: None)
    return page
