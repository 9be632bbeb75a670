"""The options of every command, as typed dataclasses, and how the command line and ``--config`` files give them."""

import argparse
import ast
import inspect
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from experiments.config import Config
from experiments.extensions import choices, load_plugin
from experiments.records.files import read_file
from experiments.records.record import read_record
from experiments.records.schema import Comparison

T = TypeVar("T")

ALL = "all"
"""what ``run`` takes for every reference comparison in place of a study's name"""
LARGEST_FILE = 2**24
"""bytes of a --config file"""
OLD_SPELLINGS = {"--cell-timeout": "--run-timeout"}
POSITIONAL = {"positional": True}
NOT_GIVEN = {"flag": ""}
"""of a field that no option sets"""

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """List studies, variants, presets and data sets."""

    plugin: tuple[str, ...] = ()
    """module that adds variants, data sets, studies or launchers when it is imported; can be given several times"""


@dataclass(frozen=True)
class RunOptions(ListOptions):
    """Run a study: train its variants, measure them, and write tables, figures and a report."""

    study: str = field(metadata=POSITIONAL)
    """name of the study, as `list` shows, or "all" for every comparison that `claims` judges"""
    preset: Literal["smoke", "cpu", "gpu", "paper"] = "cpu"
    """size of the run; every value of it can be overridden below"""
    variants: str | None = None
    """comma-separated variants; default: the study's own"""
    seeds: int | None = None
    """number of seeds, 0 to K-1; default: the preset's"""
    learning_rates: str | None = None
    """comma-separated grid: every variant gets the rate at which its first seed ends with the lowest validation loss"""
    reuse: Path | None = None
    """directory of comparisons; runs that are trained there already, with all the same, are taken over"""
    out: Path | None = None
    """directory of the comparison; default: results/runs/STUDY"""
    data_dir: Path | None = None
    """directory that holds data sets; default: the environment variable LINEAR_ROPE_DATA"""
    data_file: Path | None = None
    """text file to train on, with --data text"""
    device: Device = "auto"
    """where to train and measure"""
    workers: int | None = None
    """runs trained at the same time; default: one a core on the CPU, one on a GPU"""
    run_timeout: float = 1800
    """seconds without a sign of life (a step, a batch of an evaluation) after which a run is killed and fails"""
    launcher: str = "local"
    """what runs are started by"""
    dry_run: bool = False
    """print the runs, tokens, parameters and an estimate of the time; train and download nothing"""
    config_file: Path | None = field(default=None, metadata={"flag": "--config"})
    """TOML file with any of these options, or a comparison.json, to run that again; options given here come first"""
    settings: Mapping[str, Any] = field(default_factory=dict, metadata=NOT_GIVEN)
    """fields of Config that were given; the others are the preset's"""
    words: tuple[str, ...] = field(default=(), metadata=NOT_GIVEN)
    """the command line behind the program's name"""

    @property
    def directory(self) -> Path:
        """Where the comparison is."""
        return self.out or Path("results/runs") / self.study


@dataclass(frozen=True)
class ReportOptions(ListOptions):
    """Rebuild the tables, figures and reports of a comparison, or of all in a directory, from their files."""

    directory: Path = field(metadata=POSITIONAL)
    """what `run` wrote (its --out), or a directory of such ones"""
    format: Literal["html", "markdown", "latex", "csv"] = "html"
    """html: write the report; else print the main table for a paper in this form, and write nothing"""


@dataclass(frozen=True)
class ClaimsOptions(ListOptions):
    """Judge every claim by what was measured: supported, not supported, inconclusive or not run."""

    results: Path = Path("results/reference")
    """directory that holds the comparisons"""
    out: Path | None = None
    """file that the page is written to, in Markdown; default: it is only printed"""
    summary: bool = False
    """print counts and what each comparison answered, on one screen"""


@dataclass(frozen=True)
class GenerateOptions(ListOptions):
    """Let a trained model continue a prompt."""

    directory: Path = field(metadata=POSITIONAL)
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
    """of the distribution that tokens are drawn from; 0 takes the likeliest"""
    device: Device = "cpu"
    """where to generate"""


@dataclass(frozen=True)
class TrainOptions(ListOptions):
    """Train the one run whose directory a launcher made."""

    directory: Path = field(metadata=POSITIONAL)
    """directory of the run: VARIANT/seedK of a comparison"""


@dataclass(frozen=True)
class DoctorOptions:
    """Say what this machine has and which presets it can run."""

    data_dir: Path | None = None
    """directory that holds data sets; default: the environment variable LINEAR_ROPE_DATA"""


@dataclass(frozen=True)
class DataOptions(DoctorOptions):
    """Say which data sets are here, and where the others come from."""


def parse(name: str, kind: type[T], words: list[str], prog: str) -> T:
    """The options of a command, its plugins loaded. Prints the help text and raises SystemExit if that is asked for.

    Raises:
        ValueError: wrong use; the message names the argument, what came and what would do.
    """
    kinds = _kinds(kind)
    given = _given(name, kind, words, prog)
    values = {option: _value_of(option, kinds[option], text) for option, text in given.items()}
    if "--config" in values:
        values = _from_file(values["--config"], kinds) | values
    by_flag = {_flag(option): option for option in fields(kind) if _flag(option)}  # type: ignore[arg-type]
    required = [flag for flag, option in by_flag.items() if option.default is option.default_factory]
    missing = [flag for flag in required if flag not in values]
    if missing:
        raise ValueError(f"{name} needs {' and '.join(missing)}, and none came; {prog} --help tells more")
    own = {by_flag[flag].name: value for flag, value in values.items() if flag in by_flag}
    if kind is RunOptions:
        settings = {flag[2:].replace("-", "_"): value for flag, value in values.items() if flag not in by_flag}
        own |= {"settings": ({"data": "text"} if "data_file" in own else {}) | settings, "words": (name, *words)}
    for module in own.get("plugin", ()):
        load_plugin(module)
    return kind(**own)


def _value_of(name: str, kind: Any, text: Any) -> Any:
    """The value of an option, of the type ``kind``, from its text. Raises ValueError that says what would do."""
    if text == "":
        raise ValueError(f"{name} is empty; give it a value, or leave it out")
    if get_origin(kind) is Literal and text not in get_args(kind):
        raise ValueError(f"{name} is {text!r}; {choices(text, list(get_args(kind)))}")
    try:
        return text if get_origin(kind) is Literal else (get_origin(kind) or kind)(text)
    except ValueError:
        number = "a whole number, as 3" if kind is int else "a number, as 0.1"
        raise ValueError(f"{name} is {text!r}; give {number}") from None


def given_flags(options: RunOptions) -> list[str]:
    """The options of `run` that were given, but for those given what is the default anyway."""
    given = [option for option in fields(options) if _flag(option).startswith("--")]
    changed = [_flag(option) for option in given if getattr(options, option.name) != option.default]
    return changed + [f"--{name.replace('_', '-')}" for name in options.settings]


def flags(kind: type) -> list[str]:
    """The options that a command takes."""
    return [name for name in _kinds(kind) if name.startswith("--")]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        option, _, problem = message.removeprefix("argument ").partition(": ")
        if "ignored explicit argument" in problem:
            came = problem.removeprefix("ignored explicit argument ")
            raise ValueError(f"{option} is {came}, and takes no value; give it alone")
        raise ValueError(f"{option} came without a value; give it one, or leave it out")


def _given(name: str, kind: type, words: list[str], prog: str) -> dict[str, Any]:
    """The texts of the options and arguments that were given, by flag or metavar."""
    parser = _Parser(prog=prog, description=kind.__doc__, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    _add_options(parser, kind)
    if kind is RunOptions:
        group = "what every run is trained with; defaults are the preset's, here those of cpu"
        _add_options(parser.add_argument_group(group), Config)
    arguments = [flag for flag in _kinds(kind) if not flag.startswith("--")]
    if {"-h", "--help"} & {*words}:
        # Only for the text: argparse takes an argument that may be missing for missing when an option comes first.
        for argument in arguments:
            parser.add_argument(argument, help=_docstrings(kind)[argument.lower()])
    found, others = parser.parse_known_args([_canonical(word) for word in words])
    for option in (word.partition("=")[0] for word in others if word.startswith("-")):
        raise ValueError(f"{name} takes no option {option!r}; {choices(option, flags(kind))}")
    if len(others) > len(arguments):
        raise ValueError(f"{name} takes no argument {others[len(arguments)]!r}; leave it out, or name an option for it")
    return vars(found) | dict(zip(arguments, others, strict=False))


def _add_options(parser: Any, kind: type) -> None:
    helps, kinds = _docstrings(kind), _kinds(kind)
    for option in fields(kind):
        flag = _flag(option)
        if not flag.startswith("--"):
            continue
        words: dict[str, Any] = {"help": helps[option.name].replace("%", "%%")}
        if option.default not in (None, (), False, MISSING):
            words["help"] += f" (default: {option.default})".replace("%", "%%")
        if kinds[flag] is bool:
            parser.add_argument(flag, dest=flag, action="store_true", **words)
        else:
            words["action"] = "append" if get_origin(kinds[flag]) is tuple else "store"
            takes = get_args(kinds[flag]) if get_origin(kinds[flag]) is Literal else ()
            metavar = "|".join(takes) or {int: "N", float: "X", Path: "PATH"}.get(kinds[flag], "NAME")
            parser.add_argument(flag, dest=flag, metavar=metavar, **words)


def _flag(option: Field[Any]) -> str:
    """What sets a field: an option, an argument's metavar, or "" for nothing."""
    default = option.name.upper() if option.metadata.get("positional") else f"--{option.name.replace('_', '-')}"
    return str(option.metadata.get("flag", default))


def _kinds(kind: type) -> dict[str, Any]:
    """The type of every option and argument by flag; of one that may be None, the other type."""
    hints = get_type_hints(kind)
    found = {_flag(option): hints[option.name] for option in fields(kind) if _flag(option)}
    found = {flag: get_args(hint)[0] if NoneType in get_args(hint) else hint for flag, hint in found.items()}
    return found | (_kinds(Config) if kind is RunOptions else {})


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


def _canonical(word: str) -> str:
    """An option with dashes for underscores, and as it is spelt now."""
    name, equals, value = word.partition("=")
    name = name.replace("_", "-")
    return OLD_SPELLINGS.get(name, name) + equals + value if word.startswith("--") else word


def _from_file(path: Path, kinds: dict[str, Any]) -> dict[str, Any]:
    """The options that a --config file gives, by flag. Raises ValueError that names it and what is wrong in it."""
    remedy = "give a TOML file with options of `run`, or a comparison.json"
    try:
        if path.suffix == ".json":
            written = _of_comparison(read_record(path, Comparison, remedy), path)
        else:
            written = tomllib.loads(read_file(path, remedy, LARGEST_FILE).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"--config {path} is not TOML ({error}); give lines such as steps = 400") from None
    known = {flag.lstrip("-").lower(): flag for flag in kinds if flag != "--config"}
    found = {}
    for key, value in written.items():
        name = _canonical(f"--{key}")[2:]
        if name not in known:
            names = [option.replace("-", "_") for option in known]
            raise ValueError(f"--config {path}: there is no option {key!r}; {choices(key, names)}")
        kind = kinds[known[name]]
        if kind is bool and not isinstance(value, bool):
            raise ValueError(f"--config {path}: {key} is {value!r}; give true or false")
        if kind is not bool:
            values = value if isinstance(value, list) else [value]
            value = values if get_origin(kind) is tuple else ",".join(map(str, values))
        found[known[name]] = _value_of(f"--config {path}: {key}", kind, value)
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
    options |= {"seeds": len(record.seeds), "variants": [variant.name for variant in record.variants]}
    return {option.name: option.default for option in fields(Config)} | record.config | options
