"""The run command: its options, and what it runs: one comparison, one of each data set, or all of them."""

from typing import Annotated, TypedDict

from cyclopts import Group, Parameter
from docstring_parser import parse_from_object

from experiments.commands.plan import Plan, data_sets_of, make_plan, nothing_to_do
from experiments.config import SETTINGS, Config
from experiments.console import say_that_it_loads
from experiments.options import ALL, BENCHMARK, KINDS, RunOptions, all_values, flag, is_given, run_options

SETTINGS_GROUP = Group("What every run is trained with (here what cpu has; --preset sets most of it)", sort_key=2)
OPTIONS_GROUP = Group("Options", sort_key=1)
OTHER_NAMES = {"run_timeout": "--cell-timeout", "dry_run": "--plan"}


def _parameter(name: str, help: str) -> Parameter:
    """An option of ``run``. Of a setting the help is what stands before the first semicolon."""
    is_setting = name in SETTINGS
    return Parameter(
        name=flag(name),
        alias=OTHER_NAMES.get(name),
        help=f"{help.partition(';')[0]} [{getattr(Config(), name)}]" if is_setting else " ".join(help.split()),
        group=SETTINGS_GROUP if is_setting else OPTIONS_GROUP,
        converter=all_values if name == "plugin" else is_given if KINDS[name] is bool else None,
        show_choices=name != "preset",
    )


HELP = {each.arg_name: each.description for kind in (RunOptions, Config) for each in parse_from_object(kind).params}
Given = TypedDict(  # type: ignore[misc]
    "Given", {name: Annotated[kind, _parameter(name, HELP[name])] for name, kind in KINDS.items()}, total=False
)


def run(
    study: str | None = None,
    /,
    *,
    given: Annotated[Given, Parameter(name="*")] = {},  # noqa: B006
    words: Annotated[tuple[str, ...], Parameter(parse=False)],
) -> int:
    """Run a study: train its variants, measure them, and write tables, figures and a report.

    Args:
        study: name of the study, as `list` shows, "all" for every comparison that `claims` judges, or "benchmark"
    """
    return run_study(run_options(study, given, words))


def run_study(options: RunOptions) -> int:
    """Run a study, or all of them. Returns the exit status.

    Raises ValueError for wrong use, when nothing was written, and RunFailed if it began and could not go on.
    """
    if options.study == ALL:
        say_that_it_loads("run all")
        from experiments.commands.run_several import run_all

        return run_all(options, run_study)
    if options.study == BENCHMARK:
        say_that_it_loads("run benchmark")
        from experiments.commands.run_benchmark import run_benchmark

        return run_benchmark(options)
    if of_data := data_sets_of(options):
        from experiments.commands.run_several import run_data_sets

        return run_data_sets(options, of_data, run_plan)
    return run_plan(make_plan(options))


def run_plan(plan: Plan) -> int:
    """Make a comparison, if there is anything to do. Returns the exit status; raises as ``run_study``."""
    options = plan.options
    if said := nothing_to_do(plan):
        print(said)
        return 0
    say_that_it_loads(f"run {options.study}")
    # From here on, because these load PyTorch.
    from experiments.commands.run_measurements import run_measurements
    from experiments.commands.run_training import run_training
    from experiments.records.store import check_directory

    check_directory(options.directory)
    return run_training(plan) if plan.study.variants else run_measurements(plan)
