"""The run command and its options."""

from typing import Annotated, TypedDict

from cyclopts import Group, Parameter
from docstring_parser import parse_from_object

from experiments.commands.flow import run_study
from experiments.config import SETTINGS, Config
from experiments.options import KINDS, RunOptions, all_values, flag, is_given, run_options

SETTINGS_GROUP = Group("What every run is trained with (here what cpu has; --preset sets most of it)", sort_key=2)
OPTIONS_GROUP = Group("Options", sort_key=1)


def _parameter(name: str, help: str) -> Parameter:
    is_setting = name in SETTINGS
    return Parameter(
        name=flag(name),
        alias="--plan" if name == "dry_run" else None,
        help=" ".join(help.split()) + (f" [{getattr(Config(), name)}]" if is_setting else ""),
        group=SETTINGS_GROUP if is_setting else OPTIONS_GROUP,
        converter=all_values if name == "plugin" else is_given if KINDS[name] is bool else None,
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
