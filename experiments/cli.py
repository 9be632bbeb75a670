"""The command line: ``python -m experiments COMMAND ...``, or ``linear-rope COMMAND ...`` where it is installed.

Exit status: 0 done, 1 a run failed (or doctor found something missing), 2 wrong use, 130 or 143 stopped by a signal.
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from experiments import options as o
from experiments.console import command_line, printable, program
from experiments.errors import EXIT_FAILED, RunFailed
from experiments.extensions import choices
from experiments.run.signals import Stopped, stop_signals_raise

EXIT_WRONG_USE, EXIT_STOPPED = 2, 128
"""a stopped run's exit status is EXIT_STOPPED and the signal's number"""

COMMANDS: dict[str, tuple[type[Any], str]] = {
    "run": (o.RunOptions, "run:run"),
    "report": (o.ReportOptions, "report:report"),
    "pack": (o.PackOptions, "pack:pack"),
    "claims": (o.ClaimsOptions, "claims:claims"),
    "list": (o.ListOptions, "catalogue:list_all"),
    "watch": (o.WatchOptions, "watch:watch"),
    "doctor": (o.DoctorOptions, "doctor:doctor"),
    "data": (o.DataOptions, "catalogue:list_data"),
    "generate": (o.GenerateOptions, "generate:generate"),
    "translate": (o.TranslateOptions, "translate:translate"),
    "train": (o.TrainOptions, "train:train"),
}
"""name -> its options, and where in commands/ the function is that takes them and returns the exit status; what that
needs is imported when its command is given, so that wrong use is told at once"""


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else EXIT_WRONG_USE
    name, *rest = arguments
    try:
        if name == "--version":
            print(f"linear-rope {_version()}")
            return 0
        if name not in COMMANDS:
            raise ValueError(f"there is no command {name!r}; {choices(name, [*COMMANDS, '--version', '--help'])}")
        with stop_signals_raise():
            kind, place = COMMANDS[name]
            options: Any = o.parse(name, kind, rest, f"{program()} {name}")
            module, _, function = place.partition(":")
            command: Callable[[Any], int] = getattr(import_module(f"experiments.commands.{module}"), function)
            return command(options)
    except SystemExit as stop:  # of --help
        return int(stop.code or 0)
    except BrokenPipeError:
        # The reader of our output (head, say) has gone; nothing more can be told to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Stopped as stop:
        goes_on = "goes on from the last checkpoints" if name in ("run", "train") else "does it again"
        print(f"stopped by {stop}; the same command {goes_on}:")
        print(f"  {command_line(arguments)}", flush=True)
        return EXIT_STOPPED + stop.signal_number
    except (RunFailed, ValueError, OSError) as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return EXIT_FAILED if isinstance(error, RunFailed) else EXIT_WRONG_USE


def _usage() -> str:
    lines = [f"  {name:10}{(kind.__doc__ or '').splitlines()[0]}" for name, (kind, _) in COMMANDS.items()]
    lines.append(f"  {'--version':10}Print the version.")
    return "\n".join([f"usage: {program()} COMMAND ...\n", *lines, f"\n{program()} COMMAND --help tells more."])


def _version() -> str:
    try:
        return version("linear-rope")
    except PackageNotFoundError:  # a checkout that is not installed
        return str(import_module("linear_rope").__version__)
