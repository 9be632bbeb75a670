"""The run command for a study of several data sets: a comparison of each, and a page over them all."""

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from experiments.console import make_console, printable, program
from experiments.data.files import resolve_data_dir
from experiments.data.registry import DATA_SETS, load_data
from experiments.errors import EXIT_FAILED
from experiments.options import RunOptions
from experiments.report.overview import write_overview
from experiments.run.time_limit import TimeLimit, parse_time
from experiments.studies.registry import STUDIES


def run_data_sets(
    options: RunOptions,
    data_sets: Mapping[str, Mapping[str, Any]],
    run_one: Callable[[list[str], TimeLimit | None], int],
) -> int:
    """Run a study on every data set that can be had, each in a directory of its name. Returns the exit status.

    ``run_one`` runs the command of some words in what is left of the time, and returns its exit status. Raises
    ValueError for wrong use, if the directory is that of a comparison of one data set, if a data set is here and
    damaged, and if none can be had.
    """
    limit = None if options.for_ is None else TimeLimit(parse_time(options.for_))
    root = options.directory
    if (root / "comparison.json").exists():
        raise ValueError(f"--out {root} holds one comparison, and there is to be one of each data set; give another")
    console = make_console()
    failed, missing, there = list[str](), dict[str, str](), set[str]()
    for name, settings in data_sets.items():
        if settings.get("instead_of") in there:
            continue
        try:
            load_data(name, options.data_dir, may_download=not options.dry_run)
            there.add(name)
        except ValueError as error:
            if DATA_SETS[name].find(resolve_data_dir(options.data_dir)) is not None:
                raise  # it is here and damaged
            missing[name] = printable(str(error))
    if not there:
        raise ValueError(f"none of {', '.join(missing)} is here; the command `data` tells how to get them")
    for number, (name, settings) in enumerate(data_sets.items(), start=1):
        console.rule(f"{number} of {len(data_sets)}: {name}")
        if name not in there:
            console.print(f"left out: {missing.get(name) or settings['instead_of'] + ' is here'}", soft_wrap=True)
            continue
        # What is given twice counts as it is given last.
        words = [*options.words[1:], f"--data={name}", f"--out={root / name}"]
        console.print(f"{program()} {shlex.join(['run', *words])}", soft_wrap=True)
        if limit:
            limit.of_run = {}  # on another data set a run takes another time
        if run_one(words, limit):
            failed.append(name)
        if limit and limit.reached:
            break
    console.rule()
    if not options.dry_run:
        console.print(f"report of all: {write_overview(root, STUDIES, lambda _: None)}", soft_wrap=True)
    for name in missing:
        console.print(f"{name} was left out, because it is not here; the command `data` tells how to get it")
    if limit and limit.reached:
        console.print("the time is up (--for); the same command goes on")
    for name in failed:
        console.print(f"{name} is not done; the same command tries it again")
    return EXIT_FAILED if failed else 0
