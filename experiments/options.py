"""The options of ``run``, and the one way from words, a file or keywords to them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

from msgspec import Meta

from experiments.config import SETTINGS, Config, kinds_of, read_toml, value_of
from experiments.errors import why
from experiments.extensions import choices, load_plugin
from experiments.records.files import read_file
from experiments.records.record import read_record
from experiments.records.schema import Comparison

ALL = "all"
"""what ``run`` takes for every reference comparison in place of a study's name"""
BENCHMARK = "benchmark"
"""what it takes for the frozen tasks of the benchmark"""

Device = Literal["auto", "cpu", "cuda"]
Count = Annotated[int, Meta(ge=1, le=4096)]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What ``run`` is to do. ``None`` is what the study, its preset or the machine say."""

    study: str
    """name of the study, as `list` shows, "all" for every comparison that `claims` judges, or "benchmark" """
    preset: str = "cpu"
    """size of the run, as `list` shows; any setting below comes over it; v0: by the recipe of old"""
    variants: str | None = None
    """comma-separated, settings of their own as NAME@dim=64@heads=2; default: the study's"""
    baseline: str | None = None
    """variant that all others are compared with; default: each one's own"""
    seeds: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """number of seeds; default: the preset's"""
    learning_rates: str | None = None
    """comma-separated grid, of which each variant gets the rate of its lowest validation loss"""
    reuse: Path | None = None
    """directory of comparisons; runs that were trained there with all the same are taken over"""
    out: Path | None = None
    """directory of the comparison; default: results/runs/STUDY"""
    extend: bool = False
    """go on with the comparison that is there, with more --steps too (--schedule trapezoid)"""
    data_dir: Path | None = None
    """directory of data sets; default: the environment variable LINEAR_ROPE_DATA"""
    data_file: Path | None = None
    """text file to train on, with --data text"""
    device: Device = "auto"
    """where to train and measure"""
    workers: Count | None = None
    """runs trained at the same time; default: one a core, or as many as a GPU has room for"""
    nproc: Count = 1
    """processes that train one run together, each on its share of every batch"""
    shard: bool = False
    """with --nproc: each process holds a share of the weights too (FSDP2)"""
    run_timeout: Annotated[float, Meta(gt=0)] = 1800
    """seconds without a sign of life after which a run is killed and fails"""
    launcher: str = "local"
    """what starts runs: local (this machine), ray, slurm, or one of your own"""
    resources: str | None = None
    """what ray and slurm reserve for a run: cpu=2,gpu=0.25,memory=8,minutes=240 (memory in GiB)"""
    for_: str | None = None
    """time such as 2h, 90m or 45s, beyond which no run is trained and none is started"""
    prepare: bool = False
    """make the directories of all runs, each for `train`, and train nothing"""
    tracker: str | None = None
    """comma-separated: tensorboard, wandb (offline), trackio"""
    task: str | None = None
    """of `benchmark`: comma-separated tasks; default: all of its order"""
    pack: Path | None = None
    """of `benchmark`: directory that tasks are packed into as runs come, and taken from"""
    dry_run: bool = False
    """print the runs, tokens, parameters and an estimate of the time, and train nothing"""
    config: Path | None = None
    """TOML file with any of these options, or a comparison.json, to run that again"""
    plugin: tuple[str, ...] = ()
    """module that adds variants, data sets, studies or launchers when it is imported"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """fields of Config that were given; the others are the preset's"""
    given: Mapping[str, Any] = field(default_factory=dict)
    """all that was given, settings too, but for the study and what is the default anyway"""
    words: tuple[str, ...] = ()
    """the command line behind the program's name"""

    @property
    def directory(self) -> Path:
        """Where the comparison is."""
        return self.out or Path("results/runs") / self.study

    def refuse_others(self, taken: tuple[str, ...], why: str) -> None:
        """Raises ValueError, which names them and says ``why``, if options were given that are not among ``taken``."""
        if refused := [flag(name) for name in self.given if name not in taken]:
            raise ValueError(f"{', '.join(refused)} {why}; it takes {', '.join(map(flag, taken))}")


NOT_GIVEN = ("study", "settings", "given", "words")
KINDS = {name: kind for name, kind in kinds_of(RunOptions).items() if name not in NOT_GIVEN} | SETTINGS
"""what ``run`` takes besides a study, and of which type: fields of RunOptions and of Config"""


def flag(name: str) -> str:
    """The option of a field."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def read_value(name: str, kind: Any, given: Any) -> Any:
    """A value of a type from a text of the command line, or from what a TOML file or a notebook has.

    Raises ValueError that names it, what came and what would do.
    """
    if given in ("", [], ()):
        raise ValueError(f"{name} is empty; give it a value, or leave it out")
    texts = given if isinstance(given, list | tuple) and kind is not Path else [given]
    if kind in (Path, tuple[str, ...]) and not all(isinstance(each, str | Path) for each in texts):
        raise ValueError(f"{name} is {given!r}; give a {'path' if kind is Path else 'list of names'}")
    if kind is Path:
        return Path(given)
    if kind is str:
        return ",".join(map(str, given)) if isinstance(given, list | tuple) else str(given)
    if get_origin(kind) is tuple:
        return (given,) if isinstance(given, str) else tuple(given)
    return value_of(name, kind, given, is_text=isinstance(given, str))


def is_given(kind: Any, tokens: Sequence[Any]) -> bool:
    """What cyclopts makes of an option without a value."""
    return True


def all_values(kind: Any, tokens: Sequence[Any]) -> tuple[str, ...]:
    """What it makes of one that can be given several times."""
    return tuple(token.value for token in tokens)


def run_options(
    study: str | None, given: Mapping[str, Any], words: tuple[str, ...] = (), origin: str = "--"
) -> RunOptions:
    """The options of ``run``, its plugins loaded, from values by name, which texts may be too.

    ``origin`` stands before the names in messages; "--" is the command line.

    Raises:
        ValueError: wrong use; the message names the argument, what came and what would do.
    """
    values = _checked(given, origin)
    if "config" in values:
        from_file = _from_file(values["config"])
        named = from_file.pop("study", None)
        if not isinstance(named, str | None):
            raise ValueError(f"--config {values['config']}: study is {named!r}; give the name of one")
        study = study or named
        values = _checked(from_file, f"--config {values['config']}: ") | values
    if study is None:
        raise ValueError("run needs the name of a study, and none came; `list` shows them")
    for module in values.get("plugin", ()):
        load_plugin(module)
    own = {name: value for name, value in values.items() if name not in SETTINGS}
    settings = {name: value for name, value in values.items() if name in SETTINGS}
    given = {name: value for name, value in values.items() if name in SETTINGS or value != getattr(RunOptions, name)}
    return RunOptions(study=study, settings=settings, given=given, words=words, **own)


def _checked(given: Mapping[str, Any], origin: str) -> dict[str, Any]:
    values = {}
    for key, value in given.items():
        name = next((name for name in KINDS if flag(name) == flag(key).lower()), key)
        if name not in KINDS:
            raise ValueError(f"{origin}there is no option {key!r}; {choices(key, [*KINDS])}")
        if value is not None:
            called = flag(name) if origin == "--" else f"{origin}{key}"
            values[name] = read_value(called, KINDS[name], value)
    # A text of one's own is the data set "text", unless another one is named beside it.
    return {"data": "text"} | values if "data_file" in values else values


def as_words(values: Mapping[str, Any]) -> list[str]:
    """The words of a command line that give options, by name, their values; None and False are left out."""
    words = []
    for name, value in values.items():
        if value is True:
            words.append(flag(name))
        elif value is not None and value is not False:
            texts = [str(each) for each in (value if isinstance(value, list | tuple) else [value])]
            words += [f"{flag(name)}={text}" for text in (texts if name == "plugin" else [",".join(texts)])]
    return words


def _from_file(path: Path) -> dict[str, Any]:
    """What a --config file gives. Raises ValueError that names it and what is wrong in it."""
    remedy = "give a TOML file with options of `run`, or a comparison.json"
    try:
        if path.suffix == ".json":
            return _of_comparison(read_record(path, Comparison, remedy), path)
        read_file(path, remedy)  # what is no file, or too large, is refused
        return read_toml(path)
    except OSError as error:
        raise ValueError(f"--config {path} cannot be read ({why(error)}); {remedy}") from None


def _of_comparison(record: Comparison, path: Path) -> dict[str, Any]:
    """The options that make a recorded comparison once more; its settings are whole, so that no preset's count."""
    options: dict[str, Any] = {"study": record.study, "preset": record.preset}
    if not record.variants:
        return options
    if record.seeds != list(range(len(record.seeds))):
        raise ValueError(f"--config {path} has the seeds {record.seeds}, which no run makes: give a TOML")
    options |= {"learning_rates": record.learning_rates or None, "baseline": record.baseline or None}
    options |= {"seeds": len(record.seeds), "variants": [variant.name for variant in record.variants]}
    return asdict(Config()) | record.config | options
