"""The command line: ``python -m experiments run|report|claims|list|doctor|data``.

Exit status: 0 done, 1 a run failed (or doctor found something missing), 2 wrong use, 130 or 143 stopped by a signal.
"""

import contextlib
import dataclasses
import io
import os
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from experiments.config import Config
from experiments.errors import RunFailed, why
from experiments.launch.signals import Stopped, stop_signals_raise
from experiments.presets import PRESETS, get_preset
from experiments.studies.registry import STUDIES

PROGRAM = "python -m experiments"
EXIT_FAILED, EXIT_WRONG_USE, EXIT_STOPPED = 1, 2, 128
"""a stopped run's exit status is EXIT_STOPPED and the signal's number"""

LONGEST_MESSAGE = 3000
ALL = "all"
"""what `run` takes for every reference comparison in place of an experiment's name"""


@dataclass(frozen=True)
class RunCommand:
    """Run an experiment: train its variants, measure them, and write tables, figures and a report.

    An experiment that trains nothing (speed) takes --preset, --out, --device and --dry-run only.
    """

    experiment: tyro.conf.Positional[str]
    """name of the experiment, as `list` shows, or "all" for every comparison that `claims` judges"""
    preset: Literal["smoke", "cpu", "gpu", "paper"] = "cpu"
    """size of the run; every value of it can be overridden below"""
    variants: str | None = None
    """comma-separated variants; default: the experiment's own"""
    seeds: int | None = None
    """number of seeds, 0 to K-1; default: the preset's"""
    learning_rates: str | None = None
    """comma-separated grid: every variant gets the rate at which its first seed ends with the lowest validation loss"""
    reuse: Path | None = None
    """directory of comparisons; runs that are trained there already, with all the same, are taken over"""
    out: Path | None = None
    """directory of the comparison; default: results/runs/EXPERIMENT"""
    data_dir: Path | None = None
    """directory that holds data sets; default: the environment variable LINEAR_ROPE_DATA"""
    data_file: Path | None = None
    """text file to train on, with --data text"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where to train and measure"""
    workers: int | None = None
    """runs trained at the same time; default: one a core on the CPU, one on a GPU"""
    run_timeout: float = 1800
    """seconds without a sign of life (a step, a batch of an evaluation) after which a run is killed and fails"""
    dry_run: bool = False
    """print the runs, tokens, parameters and an estimate of the time, and train nothing"""
    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)
    """what every run is trained with"""

    @property
    def directory(self) -> Path:
        """The comparison's."""
        return self.out or Path("results/runs") / self.experiment


@dataclass(frozen=True)
class ReportCommand:
    """Rebuild the tables, figures and reports of a comparison from its files."""

    directory: tyro.conf.Positional[Path]
    """what `run` wrote (its --out)"""


@dataclass(frozen=True)
class ClaimsCommand:
    """Judge every claim by what was measured: supported, not supported, inconclusive or not run."""

    results: Path = Path("results/reference")
    """directory that holds the comparisons"""
    out: Path | None = None
    """file that the page is written to, in Markdown; default: it is only printed"""


@dataclass(frozen=True)
class ListCommand:
    """List experiments, variants, presets and data sets."""


@dataclass(frozen=True)
class DoctorCommand:
    """Say what this machine has and which presets it can run."""

    data_dir: Path | None = None
    """directory that holds data sets; default: the environment variable LINEAR_ROPE_DATA"""


@dataclass(frozen=True)
class DataCommand:
    """Say which data sets are here, and where the others come from."""

    data_dir: Path | None = None
    """directory that holds data sets; default: the environment variable LINEAR_ROPE_DATA"""


COMMANDS = {
    "run": RunCommand,
    "report": ReportCommand,
    "claims": ClaimsCommand,
    "list": ListCommand,
    "doctor": DoctorCommand,
    "data": DataCommand,
}
USAGE = f"""usage: {PROGRAM} COMMAND ...

""" + "\n".join(f"  {name:8}{(command.__doc__ or '').splitlines()[0]}" for name, command in COMMANDS.items())


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{USAGE}\n\n{PROGRAM} COMMAND --help tells more.", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else EXIT_WRONG_USE
    name, *rest = arguments
    try:
        if name not in COMMANDS:
            raise ValueError(f"there is no command {name!r}; choose from {', '.join(COMMANDS)}")
        with stop_signals_raise():
            return _dispatch(_parse(name, rest), arguments)
    except BrokenPipeError:
        # The reader of our output (head, say) has gone; nothing more can be told to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Stopped as stop:
        goes_on = "goes on from the last checkpoints" if name == "run" else "does it again"
        print(f"stopped by {stop}; the same command {goes_on}:")
        print(f"  {_command_line(arguments)}", flush=True)
        return EXIT_STOPPED + stop.signal_number
    except RunFailed as error:
        print(f"error: {_printable(str(error))}", file=sys.stderr)
        return EXIT_FAILED
    except (ValueError, OSError) as error:
        print(f"error: {_printable(str(error))}", file=sys.stderr)
        return EXIT_WRONG_USE


def _printable(message: str) -> str:
    """The message on one line: nothing that a terminal would act on, and nothing endless (an argument may be that)."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(message.split()))
    line = re.sub(r"\S{400,}", lambda word: f"{word[0][:150]}...{word[0][-50:]}", line)
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:LONGEST_MESSAGE]}..."


def _dispatch(command: object, arguments: list[str]) -> int:
    if isinstance(command, RunCommand) and command.experiment == ALL:
        from experiments.commands.run_all import run_all

        options = [*arguments[1:]]
        options.remove(ALL)
        return run_all(options, command.preset, lambda words: _dispatch(_parse("run", words[1:]), words))
    if isinstance(command, RunCommand):
        from experiments.commands.run import run

        return run(command, _command_line(arguments))
    if isinstance(command, ReportCommand):
        from experiments.report.report import write_report

        try:
            command.directory.stat()
        except (OSError, ValueError) as error:
            raise ValueError(
                f"DIRECTORY {command.directory} cannot be read ({why(error)}), so there is no comparison.json; give "
                "the directory that `run` wrote (its --out)"
            ) from None
        print(write_report(command.directory))
        return 0
    if isinstance(command, ClaimsCommand):
        from experiments.report.claims_page import claims

        claims(command.results, command.out)
        return 0
    if isinstance(command, DataCommand):
        from experiments.commands.catalogue import print_data

        print_data(command.data_dir)
        return 0
    if isinstance(command, DoctorCommand):
        from experiments.commands.doctor import doctor

        return doctor(command.data_dir)
    from experiments.commands.catalogue import print_list
    from experiments.variants import VARIANTS

    print_list(
        {name: study.question for name, study in STUDIES.items()},
        [f"{name} ({get_preset(name).description})" for name in PRESETS],
        {name: variant.description for name, variant in VARIANTS.items()},
    )
    return 0


def _quoted(argument: str) -> str:
    """The argument as a shell takes it; the bytes of a file name that is not text as bash, ksh and zsh write them."""
    if argument.isprintable() or not any("\udc80" <= character <= "\udcff" for character in argument):
        return shlex.quote(argument)
    escapes: dict[str, str | int | None] = {"\\": r"\\", "'": r"\'"}
    escapes |= {chr(0xDC00 + byte): f"\\x{byte:02x}" for byte in range(0x80, 0x100)}
    return f"$'{argument.translate(str.maketrans(escapes))}'"


def _parse(name: str, arguments: list[str]) -> object:
    """The parsed command. Raises ValueError, one line, on wrong use; SystemExit(0) after printing a help text."""
    for flag in _flags(COMMANDS[name]):
        if _option(arguments, flag.removeprefix("--")) == "":
            raise ValueError(f"{flag} is empty; give it a value, or leave it out")
    if name != "run":
        return _parsed(name, arguments, tyro.MISSING_NONPROP)
    preset = _option(arguments, "preset")
    config = get_preset(preset if preset in PRESETS else "cpu").config
    command = _parsed(name, arguments, RunCommand(tyro.MISSING, config=config))
    assert isinstance(command, RunCommand)
    if command.experiment in STUDIES and STUDIES[command.experiment].presets:  # which is known only now
        preset_config = get_preset(command.preset, STUDIES[command.experiment]).config
        command = _parsed(name, arguments, RunCommand(tyro.MISSING, config=preset_config))
        assert isinstance(command, RunCommand)
    if command.data_file is not None and _option(arguments, "data") is None:
        return dataclasses.replace(command, config=dataclasses.replace(command.config, data="text"))
    return command


def _parsed(name: str, arguments: list[str], default: object) -> object:
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            command: object = tyro.cli(COMMANDS[name], prog=f"{PROGRAM} {name}", args=arguments, default=default)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ValueError(_one_line(messages.getvalue(), name)) from None
    return command


def _command_line(arguments: list[str]) -> str:
    return f"{PROGRAM} {' '.join(map(_quoted, arguments))}"


def _option(arguments: list[str], name: str) -> str | None:
    """The value of --NAME VALUE or --NAME=VALUE, the last one given."""
    value = None
    for index, argument in enumerate(arguments):
        option, equals, rest = argument.partition("=")
        if option.replace("_", "-") != f"--{name}":
            continue
        if equals:
            value = rest
        elif index + 1 < len(arguments):
            value = arguments[index + 1]
    return value


def _one_line(message: str, name: str) -> str:
    """The first paragraph of a boxed message of tyro's, and the options there are if it is about an unknown one."""
    # Rules part the title, the paragraphs and the end; they are of dashes where the terminal has no box characters.
    paragraphs = re.split(r"(?m)^.*[─-]{5}[─╮╯│|+ -]*$", message)
    text = " ".join(line.strip(" │|") for line in paragraphs[min(1, len(paragraphs) - 1)].splitlines()).strip()
    # Of an option that may be None, what is wrong as a number is told last.
    text = re.sub(r"no type matching .* <class '\w+'>: ", "", text)
    text = re.sub(r"invalid literal for int\(\) with base 10: (.*)", r"\1 is not a whole number; give one, as 3", text)
    text = re.sub(r"could not convert string to float: (.*)", r"\1 is not a number; give one, as 0.1", text)
    text = re.sub(r"Exceeds the limit .* has (\d+) digits; .*", r"a number of \1 digits; give a smaller one", text)
    if "nrecognized" in text:
        flags = _flags(COMMANDS[name])
        text += f"; {name} takes {', '.join(flags) if flags else 'no options'}"
    return text


def _flags(command: type) -> list[str]:
    flags = []
    for option in dataclasses.fields(command):
        if option.name == "config":
            flags += _flags(Config)
        elif option.name not in ("experiment", "directory"):
            flags.append("--" + option.name.replace("_", "-"))
    return flags
