"""The command line: ``python -m experiments COMMAND ...``, or ``linear-rope COMMAND ...`` where it is installed.

What a command needs is imported when it is given, so that help and wrong use are told at once. Exit status: 0 done, 1 a
run failed (or doctor found something missing), 2 wrong use, 130 or 143 stopped by a signal.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter, Token
from msgspec import Meta

from experiments.config import value_of
from experiments.console import command_line, printable, program, say_that_it_loads
from experiments.errors import EXIT_FAILED, RunFailed
from experiments.extensions import load_plugin
from experiments.options import BENCHMARK, Count, Device, all_values, is_given, read_value, run_options
from experiments.run.signals import Stopped, stop_signals_raise

EXIT_WRONG_USE, EXIT_STOPPED = 2, 128
"""a stopped run's exit status is EXIT_STOPPED and the signal's number"""


def _version() -> str:
    try:
        return f"linear-rope {version('linear-rope')}"
    except PackageNotFoundError:  # a checkout that is not installed
        return f"linear-rope {import_module('linear_rope').__version__}"


def _read(kind: Any, tokens: Sequence[Token]) -> Any:
    """The value of an option; of one that is given twice the last counts."""
    return read_value(str(tokens[-1].keyword or "an argument"), kind, tokens[-1].value)


def _load(kind: Any, modules: tuple[str, ...]) -> None:
    for module in modules:
        load_plugin(module)


Plugins = Annotated[
    tuple[str, ...],
    Parameter(
        name="--plugin",
        help="module that adds variants, data sets, studies or launchers when it is imported; several times",
        converter=all_values,
        validator=_load,
    ),
]
Flag = Annotated[bool, Parameter(converter=is_given)]
Directory = Annotated[Path, Parameter(help="what `run` wrote (its --out)")]
Several = Annotated[Path, Parameter(help="what `run` wrote (its --out), or a directory of such ones")]
DataDir = Annotated[Path | None, Parameter(help="directory of data sets; default: the variable LINEAR_ROPE_DATA")]
OfRun = Annotated[str, Parameter(help="one of the comparison's variants")]
Seed = Annotated[int, Parameter(help="one of the comparison's seeds")]

app = App(
    name=program(),
    help="Compare linear attention and its position encodings with softmax attention.",
    version=_version,
    help_format="plaintext",
    default_parameter=Parameter(negative=(), converter=_read, allow_repeating=True),
)
app.command(
    "experiments.commands.run:run",
    name="run",
    help="Run a study: train its variants, measure them, and write tables, figures and a report.",
)


@app.command
def report(
    directory: Several,
    /,
    *,
    format: Literal["html", "markdown", "latex", "csv"] = "html",
    baseline: str | None = None,
    plugin: Plugins = (),
) -> int:
    """Rebuild the tables, figures and reports of a comparison, or of all in a directory, from their files.

    Args:
        format: html: write the report; else print the main table for a paper in this form, and write nothing
        baseline: variant that all others are compared with; default: as the comparison was run
    """
    from experiments.records.record import read_comparison
    from experiments.studies.registry import STUDIES

    several = not (directory / "comparison.json").exists() and any(directory.glob("*/comparison.json"))
    if several and baseline is not None and format == "html":
        raise ValueError(f"--baseline is for one comparison, and {directory} holds several; give the directory of one")
    if format == "html":
        study = None if several else STUDIES[read_comparison(directory).study]
        say_that_it_loads(f"report {directory}")
    from experiments.report.overview import write_overview
    from experiments.report.report import table_for_a_paper, write_report

    if format != "html":
        print(table_for_a_paper(directory, format, baseline), end="")
    elif study is None:
        print(write_overview(directory, STUDIES, lambda path: print(path, flush=True)))
    else:
        print(write_report(directory, study, baseline))
    return 0


@app.command
def pack(directory: Directory, /, *, out: Path, weights: Flag = False, plugin: Plugins = ()) -> int:
    """Pack the runs of a comparison into a few small files, or add them to those that are packed there.

    Args:
        out: directory of the packed results
        weights: pack the weights of the first seed too, in bfloat16
    """
    from experiments.commands.pack import pack as pack_comparison

    return pack_comparison(directory, out, weights)


@app.command
def claims(
    *,
    results: Path = Path("results/reference"),
    out: Path | None = None,
    summary: Flag = False,
    plugin: Plugins = (),
) -> int:
    """Judge every claim by what was measured: supported, not supported, inconclusive or not run.

    Args:
        results: directory that holds the comparisons
        out: file to write to: a .csv gets every claim, any other the page of the primary ones in Markdown
        summary: print counts and what each comparison answered, on one screen
    """
    say_that_it_loads("claims")
    from experiments.report.claims_page import claims as judge
    from experiments.studies.registry import STUDIES

    judge(STUDIES, results, out, summary)
    return 0


@app.command
def release(*, out: Path, results: Path = Path("results"), plugin: Plugins = ()) -> int:
    """Write what was measured for others: all runs as one table, the trained models, a citation, and a report as a PDF.

    Args:
        out: directory to make
        results: directory of packed results, in a checkout
    """
    say_that_it_loads("release")
    from experiments.commands.release import release as write

    return write(results, out)


@app.command(name="list")
def list_all(*, sizes: Flag = False, plugin: Plugins = ()) -> int:
    """List studies, variants, presets and data sets.

    Args:
        sizes: print what a model of each variant costs: its parameters, its state, and operations for a token
    """
    if sizes:
        say_that_it_loads("list --sizes", sys.stderr)
        from experiments.commands.sizes import list_sizes as show
    else:
        from experiments.commands.catalogue import list_all as show

    return show()


@app.command
def watch(
    directory: Several,
    /,
    *,
    once: Flag = False,
    every: float = 2.0,
    plugin: Plugins = (),
) -> int:
    """Show how far a comparison is, with its curves, until its runs have ended.

    Args:
        once: show it once and end, as also happens where there is no terminal
        every: seconds between two looks
    """
    from experiments.commands.watch import watch as show

    return show(directory, once, value_of("--every", Annotated[float, Meta(gt=0, le=3600)], every))


@app.command
def doctor(*, data_dir: DataDir = None, plugin: Plugins = ()) -> int:
    """Say what this machine has and which presets it can run."""
    from experiments.commands.doctor import doctor as examine

    return examine(data_dir)


@app.command
def data(*, data_dir: DataDir = None, plugin: Plugins = ()) -> int:
    """Say of every data set where it is, what it is, its licence, and how to get it."""
    from experiments.commands.catalogue import list_data

    return list_data(data_dir)


@app.command
def generate(
    directory: Directory,
    /,
    *,
    variant: OfRun,
    prompt: str,
    seed: Seed = 0,
    tokens: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    sample_seed: int = 0,
    device: Device = "cpu",
    plugin: Plugins = (),
) -> int:
    """Let a trained model continue a prompt.

    Args:
        prompt: text to continue
        tokens: tokens to add
        temperature: of the distribution that tokens are drawn from, 0.000001 or more; 0 takes the likeliest
        top_k: draw from this many of the likeliest tokens; default: from all
        top_p: draw from the fewest tokens, the likeliest first, whose probabilities reach this sum
        sample_seed: of the draws: another one draws another text
    """
    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    drawn["seed"] = value_of("--sample-seed", Annotated[int, Meta(ge=0, le=2**63 - 1)], sample_seed)
    run = _trained(directory, variant, seed, "generate")
    print(prompt + run.generate(prompt, tokens, device=device, **drawn))  # as it is: rich drops control characters
    return 0


@app.command
def translate(
    directory: Directory,
    /,
    *,
    variant: OfRun,
    seed: Seed = 0,
    text: str | None = None,
    beams: int = 4,
    length_penalty: float = 0.6,
    device: Device = "cpu",
    plugin: Plugins = (),
) -> int:
    """Translate texts with a trained model: the one that is given, or each line of the standard input.

    Args:
        text: text to translate; default: each line of the standard input
        beams: translations that are searched at a time; 1 takes the likeliest token each time
        length_penalty: exponent of the length penalty; 0 compares probabilities of whole translations
    """
    run = _trained(directory, variant, seed, "translate")
    if text is None and sys.stdin.isatty():
        print("translate: each line that you write is translated when the input ends (Ctrl-D)", file=sys.stderr)
    lines = (line.removesuffix("\n").removesuffix("\r") for line in sys.stdin)
    texts = list(lines) if text is None else [text]
    if count := sum("\ud800" <= character <= "\udfff" for line in texts for character in line):
        print(f"translate: bytes that are not UTF-8 are read as question marks ({count:,})", file=sys.stderr)
    for line in run.translate(texts, beams=beams, length_penalty=length_penalty, device=device):
        print(line)
    return 0


@app.command
def export(
    directory: Directory,
    /,
    *,
    variant: OfRun,
    to: Literal["hf", "safetensors", "onnx"],
    seed: Seed = 0,
    out: Path | None = None,
    overwrite: Flag = False,
    plugin: Plugins = (),
) -> int:
    """Write a trained model in a format that other code reads.

    Args:
        to: hf: for transformers; safetensors: weights and shape; onnx: whole sequences, prompts and single steps
        out: directory to write to; default: export/VARIANT-seedK-FORMAT in the comparison's
        overwrite: replace files of the same names there
    """
    run = _trained(directory, variant, seed, "export")
    from experiments.commands.export import export as write

    return write(run, to, out, overwrite=overwrite)


def _trained(directory: Path, variant: str, seed: int, command: str) -> Any:
    """A run of a comparison. Raises ValueError if there is none."""
    from experiments.records.record import read_comparison

    read_comparison(directory)  # what is none is refused before anything is loaded
    say_that_it_loads(command, sys.stderr)
    from experiments.comparison import load

    return load(directory).run(variant, seed)


@app.command
def train(directory: Path, /, *, tracker: str | None = None, plugin: Plugins = ()) -> int:
    """Train the one run whose directory a launcher made.

    Args:
        directory: directory of the run: VARIANT/seedK of a comparison
        tracker: comma-separated trackers that follow it from now on; default: those of its comparison
    """
    from experiments.trackers.registry import parse_trackers

    trackers = parse_trackers(tracker)
    from experiments.run.job import train_directory

    return train_directory(directory, trackers, plugin)


benchmark = App(name="benchmark", help="Check the records of the benchmark, or add to them.")
app.command(benchmark)


@benchmark.command
def verify(
    directory: Path = Path("results/benchmark/v1"),
    /,
    *,
    sample: int = 3,
    seed: int = 0,
    at_this_commit: Flag = False,
    threads: int | None = None,
    data_dir: DataDir = None,
) -> int:
    """Train recorded runs again by the code of their commit, and compare the curves.

    Args:
        directory: what `run benchmark --pack` wrote
        sample: runs to train
        seed: of the draw of these runs
        at_this_commit: train them by the code that is here instead
        threads: train them with so many threads, not with as many as are on record
    """
    for name, value in (("--sample", sample), ("--threads", 1 if threads is None else threads)):
        value_of(name, Count, value)
    say_that_it_loads("benchmark verify")
    from experiments.commands.verify import verify as check

    return check(directory, sample, seed, at_this_commit, threads, data_dir)


@benchmark.command
def submit(
    *,
    plugin: Plugins,
    variant: str,
    out: Path,
    task: str | None = None,
    seeds: int | None = None,
    preset: Literal["cpu", "smoke"] = "cpu",
    data_dir: DataDir = None,
) -> int:
    """Run a variant of your own through the benchmark, and pack what comes of it into one file.

    Args:
        variant: one variant, as `run --variants` takes it
        out: file to write, such as mine.zip; runs are trained in mine.zip.runs, where the same command goes on
        task: comma-separated tasks; default: all of its order
        seeds: number of seeds; default: each task's, which is the most
        preset: smoke: everything at toy size, for a test
    """
    given = {"plugin": plugin, "variants": variant, "task": task, "preset": preset, "data_dir": data_dir, "out": out}
    options = run_options(BENCHMARK, given)
    most = None if seeds is None else value_of("--seeds", Count, seeds)
    say_that_it_loads("benchmark submit")
    from experiments.commands.submit import submit as write

    return write(replace(options, seeds=most), out)


@benchmark.command(name="report")
def report_benchmark(
    directory: Path = Path("results/benchmark/v1"),
    /,
    *,
    submitted: Annotated[tuple[Path, ...], Parameter(consume_multiple=True, converter=all_values)] = (),
    out: Path | None = None,
) -> int:
    """Print the tables of the benchmark, with variants that others have submitted.

    Args:
        directory: what `run benchmark` wrote or packed
        submitted: files that `benchmark submit` wrote
        out: new directory that the reports of all are written into
    """
    say_that_it_loads("benchmark report")
    from experiments.commands.submit import report as show

    return show(directory, map(Path, submitted), out)


if program() == "linear-rope":  # a shell completes a command of one word
    app.register_install_completion_command()
COMMANDS = [name for name in app if not name.startswith("-")]


def main(words: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    if not words:
        print(f"error: no command came; {program()} --help shows them", file=sys.stderr)
        return EXIT_WRONG_USE
    try:
        with stop_signals_raise():
            command, bound, ignored = app.parse_args(list(words), print_error=False, exit_on_error=False)
            status = command(*bound.args, **bound.kwargs, **dict.fromkeys(ignored, tuple(words)))
            return int(status or 0)
    except BrokenPipeError:
        # The reader of our output (head, say) has gone; nothing more can be told to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Stopped as stop:
        resumes = words[0] in ("run", "train") or [*words[:2]] == ["benchmark", "submit"]
        goes_on = "goes on from the last checkpoints" if resumes else "does it again"
        print(f"stopped by {stop}; the same command {goes_on}:")
        print(f"  {command_line(words)}", flush=True)
        return EXIT_STOPPED + stop.signal_number
    except (CycloptsError, RunFailed, ValueError, OSError) as error:
        said = str(error.__cause__ if isinstance(error, CycloptsError) and error.__cause__ else error)
        # The library names an argument as Python does.
        option = f"--{said.partition(' is ')[0].replace('_', '-')}"
        if any(word.partition("=")[0] == option for word in words):
            said = option + said[len(option) - 2 :]
        for word, after in pairwise(words):
            if f"{word} requires an argument" in said and after.startswith("-"):
                said = f"{said.rstrip('.')}; a value that begins with - is given as {word}={after}"
        print(f"error: {printable(said)}", file=sys.stderr)
        return EXIT_FAILED if isinstance(error, RunFailed) else EXIT_WRONG_USE
