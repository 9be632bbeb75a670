"""The format of the record files, as types, and the checks that every file passes when it is read.

Keys that are not named here are allowed everywhere: an older or newer version may not know them, or know more. What is
named has to be as it says, and what is wrong is told in one line with the file, the place in it and what came.

=====================================  ================================================
comparison.json                        ``Comparison``
<variant>/seed<k>/config.json          ``RunConfig``
<variant>/seed<k>/status.json          ``Status``
<variant>/seed<k>/metrics.jsonl        a ``MetricsRow`` a line
measurements.jsonl                     a ``TimeMeasurement`` or ``MemoryMeasurement`` a line
=====================================  ================================================
"""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, NotRequired, TypedDict, get_args

from msgspec import Meta

from experiments.records.strict_json import Source, converted, shown, visible

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


class GitRecord(TypedDict):
    """The code that ran; ``commit`` is "unknown" outside a git checkout."""

    commit: str
    dirty: bool
    code_sha256: NotRequired[str]
    """of the files of both packages, with their changes"""


class VariantRecord(TypedDict):
    """A variant; ``name`` is also its directory, which may be a path of several parts inside the comparison's."""

    name: Annotated[str, Meta(min_length=1)]
    description: str
    kernel: str
    position: str
    baseline: str
    parameters: Natural
    position_parameters: Natural
    settings: NotRequired[dict[str, Value]]
    """values of the configuration in which the variant differs from the comparison's"""


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


class UnrecordedRun(TypedDict):
    """What became of a run whose status.json could not be written."""

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
    """the grid of which every variant has its best"""
    unrecorded: NotRequired[list[UnrecordedRun]]
    nondeterministic: NotRequired[list[str]]
    """operations of the variants that give other bits when they are run again"""


class RunConfig(TypedDict):
    """A run's config.json: what it is trained with, and the sha256 of its data."""

    variant: str
    seed: Natural
    data_sha256: str
    config: dict[str, Setting]


class Status(TypedDict):
    """A run's status.json; ``reason`` says why it failed or stopped, ``time`` is in seconds since 1970."""

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
            raise source.error(f": $.variants[{index}].name is {shown(variant['name'])}, which {problem}")
    _check_unique(value["seeds"], "$.seeds", source)
    _check_unique([variant["name"] for variant in value["variants"]], "$.variants", source)


def check_run_config(value: Any, source: Source) -> None:
    """Raises ValueError if a value is not a ``RunConfig``."""
    _check(value, RunConfig, source)


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
            f": $.topic and $.direction are {shown(topic)} and {shown(direction)}, expected a topic of "
            f"{', '.join(DIRECTIONS)} and a direction it is measured in"
        )
    if (value["length"] is None) != (topic in ("rate", "decoding")) or (is_memory and value["length"] is None):
        raise source.error(f": $.length is {shown(value['length'])}, which the topic {topic} cannot have")
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


def _check(value: Any, kind: Any, source: Source, place: str = "$") -> None:
    converted(value, kind, source, place, CHOICES)


def _check_unique(values: Iterable[Any], place: str, source: Source) -> None:
    for value in _repeated(values):
        raise source.error(f": {place} holds {shown(value)} twice")


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
