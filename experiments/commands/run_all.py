"""``run all``: every comparison that the claims are judged on, one after the other, by the commands of references.py.

Each is a run of its own: what is done is not repeated, so the same command goes on after a stop. A run that several
of them need, with all the same, is trained once.
"""

import shlex
from collections.abc import Callable
from pathlib import Path

from experiments.commands.run_measurements import OPTIONS as MEASURED
from experiments.console import make_console, printable, program
from experiments.errors import EXIT_FAILED, RunFailed
from experiments.judge import references
from experiments.options import BENCHMARK, RunOptions, as_words, given_options
from experiments.presets import size_of
from experiments.studies.registry import STUDIES

EVERYWHERE = (
    "--preset",
    "--data-dir",
    "--device",
    "--workers",
    "--nproc",
    "--shard",
    "--run-timeout",
    "--launcher",
    "--resources",
    "--dry-run",
    "--plugin",
)
"""options of ``run all``; they go to every run"""
RUNS = Path("results/runs")


def run_all(options: RunOptions, run_one: Callable[[list[str]], int]) -> int:
    """Run every reference, or at another preset than cpu every study with its own variants. Returns the exit status.

    ``run_one`` runs the command of some words, and returns its exit status. Raises ValueError if an option is not one
    of ``EVERYWHERE``.
    """
    given = given_options(options)
    refused = [flag for flag in given if flag not in EVERYWHERE]
    if refused:
        raise ValueError(
            f"{', '.join(refused)} is for one study; `run all` takes {', '.join(EVERYWHERE)}, and runs each "
            "study by the command that its claims name"
        )
    console = make_console()
    commands = {name: _own_command(name, options.preset) for name in STUDIES if name != BENCHMARK}
    if options.preset == "cpu":
        commands = {name: references.arguments(name) for name in references.REFERENCES}
    statuses = {}
    if not options.dry_run:
        RUNS.mkdir(parents=True, exist_ok=True)  # from the first run on, so that every command is the same again
    for number, (name, words) in enumerate(commands.items(), start=1):
        study = STUDIES[words[1]]
        # One that trains nothing does not take all of them.
        words = [*words, *as_words({flag: given[flag] for flag in given if study.variants or flag in MEASURED})]
        if study.variants and RUNS.is_dir():
            words += ["--reuse", str(RUNS)]
        console.rule(f"{number} of {len(commands)}: {name}")
        console.print(f"{program()} {shlex.join(words)}", soft_wrap=True)
        try:
            statuses[name] = run_one(words)
        except (RunFailed, ValueError) as error:  # its data are not here, say: that keeps no other from running
            console.print(f"error: {printable(str(error))}", soft_wrap=True)
            statuses[name] = EXIT_FAILED
    failed = [name for name, status in statuses.items() if status]
    console.rule()
    console.print(f"{len(commands) - len(failed)} of {len(commands)} are done" + (":" if failed else "."))
    for name in failed:
        console.print(f"  {name} is not; the same command tries it again")
    return EXIT_FAILED if failed else 0


def _own_command(name: str, preset: str) -> list[str]:
    """The words that run a study at a preset, beside the others of ``run all``."""
    words = ["run", name, "--out", str(RUNS / preset / name)]
    if "initial_weights" in (STUDIES[name].presets or {}).get(size_of(preset), {}):
        words += ["--initial-weights", str(RUNS / preset / "mlm")]
    return words
