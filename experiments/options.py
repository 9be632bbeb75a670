"""The options of every command, as typed dataclasses, and how the command line and ``--config`` files give them."""

import argparse
import ast
import inspect
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cache
from itertools import pairwise
from keyword import iskeyword
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from experiments.config import Config
from experiments.extensions import choices, load_plugin
from experiments.records.files import read_file
from experiments.records.record import read_record
from experiments.records.schema import Comparison

T = TypeVar("T")

ALL = "all"
"""what ``run`` takes for every reference comparison in place of a study's name"""
BENCHMARK = "benchmark"
"""what it takes for the frozen tasks of the benchmark"""
LARGEST_FILE = 2**24
"""bytes of a --config file"""
OTHER_SPELLINGS = {"--cell-timeout": "--run-timeout", "--plan": "--dry-run"}
SETTINGS = [f"--{setting.name.replace('_', '-')}" for setting in fields(Config)]
"""options of ``run`` that are fields of Config"""

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """List studies, variants, presets and data sets."""

    plugin: tuple[str, ...] = ()
    """module that adds variants, data sets, studies or launchers when it is imported; can be given several times"""


@dataclass(frozen=True)
class RunOptions(ListOptions):
    """Run a study: train its variants, measure them, and write tables, figures and a report."""

    study: str = field(metadata={"flag": "STUDY"})
    """name of the study, as `list` shows, "all" for every comparison that `claims` judges, or "benchmark" """
    preset: Literal[
        "smoke", "cpu", "one-thread", "decoding", "gpu-0.47m", "gpu-1.6m", "gpu-6.4m", "gpu-small", "gpu", "paper",
        "v0", "smoke,v0", "gpu-small,v0", "gpu,v0", "paper,v0",
    ] = "cpu"  # fmt: skip
    """size of the run; every value of it can be overridden below; v0: with the optimiser, schedule, initial spread and
    learning rate that language models had before, cpu's unless a size comes first"""
    variants: str | None = None
    """comma-separated variants, with settings of their own as NAME@dim=64@heads=2; default: the study's own"""
    baseline: str | None = None
    """variant that tables and figures compare all others with; default: each one's own (the same kernel without
    positions, or without its setting) where that is run too, else the first variant"""
    seeds: int | None = None
    """number of seeds, 0 to K-1; default: the preset's"""
    learning_rates: str | None = None
    """comma-separated grid, extended until a variant's best is inside it: each variant gets its own, that of the lowest
    validation loss, which up to three seeds decide"""
    reuse: Path | None = None
    """directory of comparisons; runs that are trained there already, with all the same, are taken over"""
    out: Path | None = None
    """directory of the comparison; default: results/runs/STUDY"""
    extend: bool = False
    """go on with the comparison that is there: with more --steps each run goes on from where its learning rate began to
    fall (--schedule trapezoid); more --seeds and --variants are added with or without it"""
    data_dir: Path | None = None
    """directory that holds data sets; default: the environment variable LINEAR_ROPE_DATA"""
    data_file: Path | None = None
    """text file to train on, with --data text"""
    device: Device = "auto"
    """where to train and measure"""
    workers: int | None = None
    """runs trained at the same time; default: one a core on the CPU; on a GPU one, or as many as its kernels have room
    for by the kernel_share on record; of a cluster, all it has room for"""
    nproc: int = 1
    """processes that train one run together, each on its share of every batch"""
    shard: bool = False
    """with --nproc: each process holds a share of the weights too (FSDP2), for models too large for one"""
    run_timeout: float = 1800
    """seconds without a sign of life (a step, a batch of an evaluation) after which a run is killed and fails"""
    launcher: str = "local"
    """what runs are started by: local (this machine), ray, slurm, or one of your own"""
    resources: str | None = None
    """what ray and slurm reserve for a run: cpu=2,gpu=0.25,memory=8,minutes=240 (memory in GiB; minutes and whole GPUs
    for slurm); default: a core a thread, and a GPU with --device cuda"""
    for_: str | None = None
    """time such as 2h, 90m or 45s: no run is started that would not end in it, by the time that others took, or trial
    steps; one that has not ended then is stopped; what is measured then, and the report, come after it; on a
    GPU they are left to the command without it"""
    prepare: bool = False
    """make the directory of every run that is not done, and train nothing: each is for `train`, in a job array or under
    torchrun say"""
    tracker: str | None = None
    """comma-separated: tensorboard, wandb (offline) or trackio, which show each run's metrics as they come"""
    task: str | None = None
    """of `benchmark`: comma-separated tasks; default: all that are part of its order"""
    pack: Path | None = None
    """of `benchmark`: directory that tasks are packed into as runs come, and taken from where there are no runs yet"""
    dry_run: bool = False
    """print the runs, tokens, parameters and an estimate of the time; train and download nothing"""
    config: Path | None = None
    """TOML file with any of these options, or a comparison.json, to run that again; options given here come first"""
    settings: Mapping[str, Any] = field(default_factory=dict, metadata={"flag": ""})
    """fields of Config that were given; the others are the preset's"""
    words: tuple[str, ...] = field(default=(), metadata={"flag": ""})
    """the command line behind the program's name"""

    @property
    def directory(self) -> Path:
        """Where the comparison is."""
        return self.out or Path("results/runs") / self.study


@dataclass(frozen=True)
class ReportOptions(ListOptions):
    """Rebuild the tables, figures and reports of a comparison, or of all in a directory, from their files."""

    directory: Path = field(metadata={"flag": "DIRECTORY"})
    """what `run` wrote (its --out), or a directory of such ones"""
    format: Literal["html", "markdown", "latex", "csv"] = "html"
    """html: write the report; else print the main table for a paper in this form, and write nothing"""
    baseline: str | None = None
    """variant that all others are compared with; default: as the comparison was run"""


@dataclass(frozen=True)
class PackOptions(ListOptions):
    """Pack the runs of a comparison into a few small files, or add them to those that are packed there."""

    directory: Path = field(metadata={"flag": "DIRECTORY"})
    """what `run` wrote (its --out)"""
    out: Path
    """directory of the packed results"""
    weights: bool = False
    """pack the weights of the first seed too, in bfloat16"""


@dataclass(frozen=True)
class ClaimsOptions(ListOptions):
    """Judge every claim by what was measured: supported, not supported, inconclusive or not run."""

    results: Path = Path("results/reference")
    """directory that holds the comparisons"""
    out: Path | None = None
    """file to write to: a .csv gets every claim, any other the page of the primary ones in Markdown; default: they are
    only printed"""
    summary: bool = False
    """print counts and what each comparison answered, on one screen"""


@dataclass(frozen=True)
class GenerateOptions(ListOptions):
    """Let a trained model continue a prompt."""

    directory: Path = field(metadata={"flag": "DIRECTORY"})
    """what `run` wrote (its --out)"""
    variant: str
    """one of the comparison's variants"""
    prompt: str
    """text to continue"""
    seed: int = 0
    """one of the comparison's seeds"""
    tokens: int = 200
    """tokens to add"""
    temperature: float = 1.0
    """of the distribution that tokens are drawn from, 0.000001 or more; 0 takes the likeliest"""
    top_k: int | None = None
    """draw from this many of the likeliest tokens; default: from all"""
    top_p: float = 1.0
    """draw from the fewest tokens, the likeliest first, whose probabilities reach this sum"""
    sample_seed: int = 0
    """of the draws: another one draws another text"""
    device: Device = "cpu"
    """where to generate"""


@dataclass(frozen=True)
class TranslateOptions(ListOptions):
    """Translate texts with a trained model: the one that is given, or each line of the standard input."""

    directory: Path = field(metadata={"flag": "DIRECTORY"})
    """what `run translation` wrote (its --out)"""
    variant: str
    """one of the comparison's variants"""
    seed: int = 0
    """one of the comparison's seeds"""
    text: str | None = None
    """text to translate; default: each line of the standard input"""
    beams: int = 4
    """translations that are searched at a time; 1 takes the likeliest token each time"""
    length_penalty: float = 0.6
    """exponent of the length penalty; 0 compares probabilities of whole translations"""
    device: Device = "cpu"
    """where to translate"""


@dataclass(frozen=True)
class TrainOptions(ListOptions):
    """Train the one run whose directory a launcher made."""

    directory: Path = field(metadata={"flag": "DIRECTORY"})
    """directory of the run: VARIANT/seedK of a comparison"""
    tracker: str | None = None
    """comma-separated trackers that follow it from now on; default: those that its comparison was run with"""


@dataclass(frozen=True)
class WatchOptions(ListOptions):
    """Show how far a comparison is, with its curves, until its runs have ended."""

    directory: Path = field(metadata={"flag": "DIRECTORY"})
    """what `run` writes (its --out), or a directory of such ones"""
    once: bool = False
    """show it once and end, as also happens where there is no terminal"""
    every: float = 2.0
    """seconds between two looks"""


@dataclass(frozen=True)
class DoctorOptions(ListOptions):
    """Say what this machine has and which presets it can run."""

    data_dir: Path | None = None
    """directory that holds data sets; default: the environment variable LINEAR_ROPE_DATA"""


@dataclass(frozen=True)
class DataOptions(DoctorOptions):
    """Say which data sets are here, and where the others come from."""

    floors: Path | None = None
    """directory of a comparison; only its floors are computed, anew from its data, and printed"""


class _Option(NamedTuple):
    kind: Any
    """the type of its value; of one that may be None, the other type"""
    default: Any
    help: str

    @property
    def takes(self) -> tuple[str, ...]:
        """The values that it can have, if they are few."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()


@cache
def _options(kind: type) -> dict[str, _Option]:
    """The options of a command by flag, and its arguments by metavar."""
    found, hints, helps = {}, get_type_hints(kind), _docstrings(kind)
    for option in fields(kind):
        hint = hints[option.name]
        hint = get_args(hint)[0] if NoneType in get_args(hint) else hint
        if flag := option.metadata.get("flag", f"--{option.name.rstrip('_').replace('_', '-')}"):
            found[flag] = _Option(hint, option.default, helps[option.name])
    return found | (_options(Config) if kind is RunOptions else {})


def _field(flag: str) -> str:
    name = flag.lstrip("-").replace("-", "_").lower()
    return name + "_" * iskeyword(name)


def _docstrings(kind: type) -> dict[str, str]:
    """What is written under each field of a dataclass and those it inherits from."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0].body  # type: ignore[attr-defined]
        for statement, below in pairwise(body):
            if isinstance(statement, ast.AnnAssign) and isinstance(below, ast.Expr):
                text = below.value.value  # type: ignore[attr-defined]
                found[statement.target.id] = " ".join(text.split())  # type: ignore[union-attr]
    return found


def flags(kind: type) -> list[str]:
    """The options that a command takes."""
    return [flag for flag in _options(kind) if flag.startswith("--")]


def given_options(options: RunOptions) -> dict[str, Any]:
    """The options of `run` that were given, by flag, but for those given what is the default anyway."""
    values = {flag: getattr(options, _field(flag)) for flag in flags(RunOptions) if flag not in SETTINGS}
    changed = {flag: value for flag, value in values.items() if value != _options(RunOptions)[flag].default}
    return changed | {f"--{name.replace('_', '-')}": value for name, value in options.settings.items()}


def as_words(values: Mapping[str, Any]) -> list[str]:
    """The words of a command line that give options, by flag, their values; None and False are left out."""
    words = []
    for flag, value in values.items():
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            texts = [str(each) for each in (value if isinstance(value, list | tuple) else [value])]
            words += [f"{flag}={text}" for text in (texts if flag == "--plugin" else [",".join(texts)])]
    return words


def parse(name: str, kind: type[T], words: list[str], prog: str) -> T:
    """The options of a command, its plugins loaded. Prints the help text and raises SystemExit if that is asked for.

    Raises:
        ValueError: wrong use; the message names the argument, what came and what would do.
    """
    options = _options(kind)  # type: ignore[arg-type]
    texts = _texts(name, kind, words, prog)
    values = _with_its_data_set({flag: _value_of(flag, options[flag], text) for flag, text in texts.items()})
    if "--config" in values:
        values = _with_its_data_set(_from_file(values["--config"], options)) | values
    needed = [flag for flag, option in options.items() if option.default is MISSING and flag not in values]
    if needed:
        raise ValueError(f"{name} needs {' and '.join(needed)}, and none came; {prog} --help tells more")
    own = {_field(flag): value for flag, value in values.items() if flag not in SETTINGS}
    if kind is RunOptions:
        settings = {_field(flag): value for flag, value in values.items() if flag in SETTINGS}
        own |= {"settings": settings, "words": (name, *words)}
    for module in own.get("plugin", ()):
        load_plugin(module)
    return kind(**own)


def _with_its_data_set(values: dict[str, Any]) -> dict[str, Any]:
    """A text of one's own is the data set "text", unless another one is named beside it."""
    return {"--data": "text"} | values if "--data-file" in values else values


def _value_of(name: str, option: _Option, text: Any) -> Any:
    """The value of an option from its text. Raises ValueError that says what would do."""
    if text == "":
        raise ValueError(f"{name} is empty; give it a value, or leave it out")
    if option.takes:
        if text not in option.takes:
            raise ValueError(f"{name} is {text!r}; {choices(text, list(option.takes))}")
        return text
    try:
        return (get_origin(option.kind) or option.kind)(text)
    except ValueError:
        number = "a whole number, as 3" if option.kind is int else "a number, as 0.1"
        raise ValueError(f"{name} is {text!r}; give {number}") from None


class _Parser(argparse.ArgumentParser):
    words: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        option, _, problem = message.removeprefix("argument ").partition(": ")
        if "ignored explicit argument" in problem:
            came = problem.removeprefix("ignored explicit argument ")
            raise ValueError(f"{option} is {came}, and takes no value; give it alone")
        for word, after in pairwise(self.words):
            if word == option and after.startswith("-") and after.partition("=")[0] not in self._option_string_actions:
                raise ValueError(
                    f"{option} came before {after!r}; a value that begins with - is given as {option}={after}"
                )
        raise ValueError(f"{option} came without a value; give it one, or leave it out")


def _texts(name: str, kind: type, words: list[str], prog: str) -> dict[str, Any]:
    """The texts of the options and arguments that were given, by flag or metavar."""
    parser = _Parser(prog=prog, description=kind.__doc__, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    group = parser.add_argument_group("what every run is trained with; defaults are the preset's, here those of cpu")
    for flag in flags(kind):
        _add_option(group if flag in SETTINGS else parser, flag, _options(kind)[flag])
    arguments = [flag for flag in _options(kind) if not flag.startswith("--")]
    if {"-h", "--help"} & {*words}:
        # Only for the text: argparse takes an argument that may be missing for missing when an option comes first.
        for argument in arguments:
            parser.add_argument(argument, help=_options(kind)[argument].help)
    parser.words = [_canonical(word, kind) for word in words]
    found, others = parser.parse_known_args(parser.words)
    for option in (word.partition("=")[0] for word in others if word.startswith("-")):
        raise ValueError(f"{name} takes no option {option!r}; {choices(option, flags(kind))}")
    if len(others) > len(arguments):
        raise ValueError(f"{name} takes no argument {others[len(arguments)]!r}; leave it out, or name an option for it")
    return vars(found) | dict(zip(arguments, others, strict=False))


def _add_option(parser: Any, flag: str, option: _Option) -> None:
    default = "" if option.default in (None, (), False, MISSING) else f" (default: {option.default})"
    text = (option.help + default).replace("%", "%%")
    if option.kind is bool:
        parser.add_argument(flag, dest=flag, action="store_true", help=text)
        return
    action = "append" if get_origin(option.kind) is tuple else "store"
    metavar = "|".join(option.takes) or {int: "N", float: "X", Path: "PATH"}.get(option.kind, "NAME")
    parser.add_argument(flag, dest=flag, action=action, metavar=metavar, help=text)


def _canonical(word: str, kind: type) -> str:
    """An option with dashes for underscores, and as it is spelt now; any other word, a value say, as it is."""
    name, equals, value = word.partition("=")
    known = OTHER_SPELLINGS.get(name.replace("_", "-"), name.replace("_", "-"))
    return known + equals + value if known in flags(kind) else word


def _from_file(path: Path, options: Mapping[str, _Option]) -> dict[str, Any]:
    """The options that a --config file gives, by flag. Raises ValueError that names it and what is wrong in it."""
    remedy = "give a TOML file with options of `run`, or a comparison.json"
    try:
        if path.suffix == ".json":
            written = _of_comparison(read_record(path, Comparison, remedy), path)
        else:
            written = tomllib.loads(read_file(path, remedy, LARGEST_FILE).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"--config {path} is not TOML ({error}); give lines such as steps = 400") from None
    known = {flag.lstrip("-").lower(): flag for flag in options if flag != "--config"}
    found = {}
    for key, value in written.items():
        name = _canonical(f"--{key}", RunOptions)[2:]
        if name not in known:
            names = [option.replace("-", "_") for option in known]
            raise ValueError(f"--config {path}: there is no option {key!r}; {choices(key, names)}")
        option = options[known[name]]
        if option.kind is bool and not isinstance(value, bool):
            raise ValueError(f"--config {path}: {key} is {value!r}; give true or false")
        if option.kind is not bool:
            values = value if isinstance(value, list) else [value]
            value = values if get_origin(option.kind) is tuple else ",".join(map(str, values))
        found[known[name]] = _value_of(f"--config {path}: {key}", option, value)
    return found


def _of_comparison(record: Comparison, path: Path) -> dict[str, Any]:
    """The options that make a recorded comparison once more; its settings are whole, so that no preset's count."""
    options: dict[str, Any] = {"study": record.study, "preset": record.preset}
    if not record.variants:
        return options
    if record.seeds != list(range(len(record.seeds))):
        raise ValueError(f"--config {path} has the seeds {record.seeds}, which no run makes: give a TOML")
    if record.learning_rates:
        options["learning_rates"] = record.learning_rates
    if record.baseline:
        options["baseline"] = record.baseline
    options |= {"seeds": len(record.seeds), "variants": [variant.name for variant in record.variants]}
    return asdict(Config()) | record.config | options
