"""The format of the record files, as types, and the checks that every file passes when it is read.

Keys that are not named here are allowed everywhere: an older or newer version may not know them, or know more. What is
named has to be as it says, and what is wrong is told in one line with the file, the place in it and what came.

=====================================  ================================================
comparison.json                        ``Comparison``
<variant>/seed<k>/config.json          ``CellConfig``
<variant>/seed<k>/status.json          ``Status``
<variant>/seed<k>/metrics.jsonl        a ``MetricsRow`` a line
measurements.jsonl                     a ``TimeMeasurement`` or ``MemoryMeasurement`` a line
=====================================  ================================================
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeVar, get_args

import msgspec
from msgspec import Meta

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Length = Annotated[int, Meta(ge=1, le=2**40)]
"""tokens of a sequence"""
Number = Annotated[float, Meta(ge=-1e100, le=1e100)]
"""far beyond what float32 can hold, and its square is still finite"""
Seconds = Annotated[float, Meta(ge=1e-12, le=1e12)]
Value = str | int | float | bool | None
Setting = Value | list[Value]

State = Literal["queued", "running", "done", "failed"]
Split = Literal["train", "validation", "test"]
CHOICES: dict[str, tuple[str, ...]] = {"state": get_args(State), "split": get_args(Split), "kind": ("time", "memory")}

LONGEST_NAME = 200
"""bytes of a variant's name; it is the name of a directory"""
DEEPEST = 32
"""levels of lists and objects in a JSON file"""
SHOWN = 60
"""characters of a wrong value that a message repeats"""

T = TypeVar("T")


class GitRecord(TypedDict):
    """The code that ran; ``commit`` is "unknown" outside a git checkout."""

    commit: str
    dirty: bool
    code_sha256: NotRequired[str]
    """of the files of both packages, with their changes"""


class VariantRecord(TypedDict):
    """An arm; ``name`` is also its directory, which may be a path of several parts inside the comparison's."""

    name: Annotated[str, Meta(min_length=1)]
    description: str
    kernel: str
    position: str
    baseline: str
    parameters: Natural
    position_parameters: Natural
    settings: NotRequired[dict[str, Value]]
    """values of the configuration in which the arm differs from the comparison's"""


class DataRecord(TypedDict):
    """A data set; ``bytes`` and ``splits`` count bytes."""

    name: str
    sha256: str
    source: str
    note: str
    bytes: Natural
    splits: dict[str, Natural]


class TrainingConfig(TypedDict):
    """What a report needs of the configuration of a comparison that trains: steps, sequences and tokens."""

    steps: Positive
    batch_size: Positive
    context: Positive
    log_every: Positive
    evaluate_every: Positive


class EvaluatedWindows(TypedDict):
    """Windows of ``context`` tokens, of a comparison that trains."""

    validation: Natural


class UnrecordedCell(TypedDict):
    """What became of a cell whose status.json could not be written."""

    variant: str
    seed: Natural
    state: State
    reason: str


class Comparison(TypedDict):
    """comparison.json: what was run, on what and with what.

    An experiment that trains nothing has no variants, seeds and data. With variants there are seeds and data, the
    ``config`` has what ``TrainingConfig`` says and ``evaluated_windows`` what ``EvaluatedWindows`` says. Names of
    variants and seeds are unique.
    """

    name: str
    experiment: str
    preset: str
    command: str
    config: dict[str, Setting]
    variants: list[VariantRecord]
    seeds: list[Natural]
    git: GitRecord
    versions: dict[str, Value]
    machine: dict[str, Value]
    data: list[DataRecord]
    evaluated_windows: dict[str, Natural]
    created: str
    notes: list[str]
    learning_rates: NotRequired[list[Number]]
    """the grid of which every arm has its best"""
    unrecorded: NotRequired[list[UnrecordedCell]]
    nondeterministic: NotRequired[list[str]]
    """operations of the arms that give other bits when they are run again"""


class CellConfig(TypedDict):
    """A cell's config.json: what it is trained with, and the sha256 of its data."""

    variant: str
    seed: Natural
    data_sha256: str
    config: dict[str, Setting]


class Status(TypedDict):
    """A cell's status.json; ``reason`` says why it failed or stopped, ``time`` is in seconds since 1970."""

    state: State
    reason: NotRequired[str | None]
    notes: NotRequired[list[str]]
    time: NotRequired[Number | None]


class MetricsRow(TypedDict):
    """A line of metrics.jsonl; every further key is a metric, a ``Number``. One row per step and split.

    ``step`` counts optimiser steps and ``tokens`` what they saw.
    """

    step: Natural
    tokens: Natural
    split: Split


METRIC_INDEX = tuple(MetricsRow.__annotations__)


class Failure(TypedDict):
    """A competitor of a measurement that could not be measured."""

    case: str
    length: Length
    reason: str


class Sample(TypedDict):
    """A competitor's times, in seconds by round, and its sizes."""

    case: str
    length: Length
    seconds: Annotated[list[Seconds], Meta(min_length=1)]
    parameters: NotRequired[Positive]
    state_bytes: NotRequired[Positive]


class _Measurement(TypedDict):
    topic: str
    direction: str
    length: Length | None
    """None where several lengths are timed in the same rounds"""
    cases: list[tuple[str, Length]]
    run: NotRequired[str]
    """the process run that made it"""
    failures: NotRequired[list[Failure]]


class TimeMeasurement(_Measurement):
    """A line of measurements.jsonl of kind "time": competitors timed in turn, so all have as many rounds.

    A case and length is there once, and has the measurement's own length where that is not null.
    """

    kind: Literal["time"]
    samples: list[Sample]
    chunk_size: NotRequired[Length]
    """tokens of a chunk of the operation; with the topic "rate" it is there"""


class MemoryMeasurement(_Measurement):
    """A line of measurements.jsonl of kind "memory", in bytes; without ``rise`` it has failures."""

    kind: Literal["memory"]
    case: str
    rise: NotRequired[Natural]
    returned: NotRequired[Natural]
    method: NotRequired[str]


DIRECTIONS = {
    "rate": ("forward", "forward+backward"),
    "operation": ("forward", "forward+backward"),
    "module": ("forward", "forward+backward"),
    "training": ("step",),
    "positions": ("step",),
    "decoding": ("token",),
}
"""of each topic of the speed experiment; memory is measured in the last"""


@dataclass(frozen=True)
class Source:
    """Where a value was read, for messages: the file (and line), and what to do when it is wrong."""

    where: str
    remedy: str

    def error(self, problem: str) -> ValueError:
        """A ValueError of one line."""
        return ValueError(visible(" ".join(f"{self.where}{problem}; {self.remedy}".split())))


def visible(text: str) -> str:
    r"""The text with control characters, lone surrogates and changes of direction written as ``\x07`` or ``\u202e``.

    Line breaks and tabs stay.
    """
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


_INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def parse_json(content: bytes, source: Source) -> Any:
    r"""The value of a JSON text in UTF-8. Lone surrogates, which no other file can hold, become text: ``\ud800``.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has a number that is not finite or beyond 64 bits.
    """
    try:
        value = json.loads(
            content.decode(), parse_constant=_refuse_number, parse_float=_finite_float, parse_int=_int_of_64_bits
        )
    except RecursionError:
        raise source.error(f" is nested more than {DEEPEST} levels deep") from None
    except ValueError as error:
        raise source.error(f" is not JSON ({error})") from None
    opened = content.count(b"[") + content.count(b"{")
    if opened <= DEEPEST and b"\\u" not in content:
        return value
    try:
        return _without_surrogates(value, DEEPEST)
    except RecursionError:
        raise source.error(f" is nested more than {DEEPEST} levels deep") from None


def check_comparison(value: Any, source: Source) -> None:
    """Raises ValueError if a value is not a ``Comparison``."""
    _check(value, Comparison, source)
    if value["variants"]:
        _check(value["config"], TrainingConfig, source, "$.config")
        _check(value["evaluated_windows"], EvaluatedWindows, source, "$.evaluated_windows")
        for name in ("seeds", "data"):
            if not value[name]:
                raise source.error(f": $.{name} is empty, and there are variants")
    for index, variant in enumerate(value["variants"]):
        problem = _problem_of_name(variant["name"])
        if problem:
            raise source.error(f": $.variants[{index}].name is {_shown(variant['name'])}, which {problem}")
    _check_unique(value["seeds"], "$.seeds", source)
    _check_unique([variant["name"] for variant in value["variants"]], "$.variants", source)


def check_cell_config(value: Any, source: Source) -> None:
    """Raises ValueError if a value is not a ``CellConfig``."""
    _check(value, CellConfig, source)


def check_status(value: Any, source: Source) -> None:
    """Raises ValueError if a value is not a ``Status``."""
    _check(value, Status, source)


def check_metrics_row(value: Any, source: Source) -> None:
    """Raises ValueError if a value is not a ``MetricsRow`` with numbers besides."""
    _check(value, MetricsRow, source)
    for name, number in value.items():
        if name not in METRIC_INDEX:
            _check(number, Number, source, f"$.{name}")


def check_measurement(value: Any, source: Source) -> None:
    """Raises ValueError if a value is neither a ``TimeMeasurement`` nor a ``MemoryMeasurement``."""
    is_memory = isinstance(value, dict) and value.get("kind") == "memory"
    _check(value, MemoryMeasurement if is_memory else TimeMeasurement, source)
    topic, direction = value["topic"], value["direction"]
    directions = DIRECTIONS.get(topic, ())[-1 if is_memory else 0 :]
    if direction not in directions:
        raise source.error(
            f": $.topic and $.direction are {_shown(topic)} and {_shown(direction)}, expected a topic of "
            f"{', '.join(DIRECTIONS)} and a direction it is measured in"
        )
    if (value["length"] is None) != (topic in ("rate", "decoding")) or (is_memory and value["length"] is None):
        raise source.error(f": $.length is {_shown(value['length'])}, which the topic {topic} cannot have")
    if is_memory:
        if not {"rise", "returned", "method"} <= value.keys() and not value.get("failures"):
            raise source.error(" lacks rise, returned and method, and has no failures")
        return
    if topic == "rate" and "chunk_size" not in value:
        raise source.error(" lacks chunk_size")
    _check_unique([(sample["case"], sample["length"]) for sample in value["samples"]], "$.samples", source)
    for index, sample in enumerate(value["samples"]):
        if value["length"] not in (None, sample["length"]):
            raise source.error(f": $.samples[{index}].length is {sample['length']}, expected {value['length']}")
        if len(sample["seconds"]) != len(value["samples"][0]["seconds"]):
            raise source.error(f": $.samples[{index}].seconds has another number of rounds than $.samples[0].seconds")


def converted(value: Any, kind: type[T], source: Source, place: str = "$") -> T:
    """The value as an object of a type that msgspec knows, a dataclass say. ``place`` is where it is in the file.

    Raises:
        ValueError: it is not of that type.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise source.error(_problem(str(error), value, place)) from None


def _check(value: Any, kind: Any, source: Source, place: str = "$") -> None:
    converted(value, kind, source, place)


def _problem(message: str, value: Any, place: str) -> str:
    """What msgspec says, with the value that came, to stand behind the file's name."""
    said, _, path = message.partition(" - at ")
    inner = path.strip("`").removeprefix("$")
    where = "" if place + inner == "$" else f": {place}{inner}"
    missing = re.fullmatch(r"Object missing required field `(.*)`", said)
    if missing:
        return f"{where} lacks {missing[1]}"
    found = _found(value, inner)
    came = f"{where} is {_shown(found[0])}" if found else where or ": the whole"
    choices = CHOICES.get(inner.rpartition(".")[2])
    if said.startswith("Invalid enum value") and choices:
        return f"{came}, expected one of {', '.join(choices)}"
    said = said.partition(", got ")[0] if found else said
    return f"{came}, {said[:1].lower()}{said[1:]}"


def _found(value: Any, path: str) -> list[Any]:
    """The value at a path such as ``.seeds[0]``, in a list; an empty one if the path does not say which it is."""
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        if index == "...":
            return []
        value = value[name] if name else value[int(index)]
    return [value]


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _check_unique(values: Iterable[Any], place: str, source: Source) -> None:
    for value in _repeated(values):
        raise source.error(f": {place} holds {_shown(value)} twice")


def _repeated(values: Iterable[Any]) -> Iterator[Any]:
    seen = set()
    for value in values:
        if value in seen:
            yield value
        seen.add(value)


def _problem_of_name(name: str) -> str | None:
    """Why a name cannot be that of a variant's directory; None if it can."""
    if visible(name) != name or set(name) & set("\t\r\n"):
        return "has control characters"
    if {"", ".", ".."} & set(name.split("/")) or ".." in re.split(r"[/\\]", name):
        return "is no path inside the comparison's directory"
    if len(name.encode()) > LONGEST_NAME:
        return f"is longer than {LONGEST_NAME} bytes"
    return None


def _refuse_number(text: str) -> None:
    raise ValueError(f"{text} is no number that can be recorded")


def _finite_float(text: str) -> float:
    value = float(text)
    if abs(value) == float("inf"):
        raise ValueError(f"{text[:SHOWN]} is beyond what a float can hold")
    return value


def _int_of_64_bits(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{text[:SHOWN]} is beyond 64 bits")
    return int(text)


def _without_surrogates(value: Any, levels: int) -> Any:
    """Raises RecursionError if the value has more levels."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if not isinstance(value, (dict, list)):
        return value
    if levels == 0:
        raise RecursionError
    if isinstance(value, list):
        return [_without_surrogates(item, levels - 1) for item in value]
    return {
        _without_surrogates(name, levels - 1): _without_surrogates(item, levels - 1) for name, item in value.items()
    }
