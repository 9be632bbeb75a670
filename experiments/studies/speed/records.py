"""The speed study's record: ``measurements.jsonl``, a ``Measurement`` a line."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from experiments.records.files import read_file, write_atomically, wrong_file
from experiments.records.record import decoded, read_lines
from experiments.records.schema import Comparison, Natural, Positive
from experiments.studies.speed.study import COPY, DIRECTIONS, PRESETS, SGEMM, Length, SpeedConfig

RECORDS = "measurements.jsonl"
REMEDY = "remove that line"

Seconds = Annotated[float, Meta(ge=1e-12, le=1e12)]


class Failure(Struct):
    """A competitor that could not be measured."""

    case: str
    length: Length
    reason: str


class Sample(Struct, omit_defaults=True):
    """A competitor's times, in seconds by round, and its sizes."""

    case: str
    length: Length
    seconds: Annotated[list[Seconds], Meta(min_length=1)]
    parameters: Positive | None = None
    state_bytes: Positive | None = None


class Measurement(Struct, kw_only=True, omit_defaults=True):
    """One measurement: what is measured together, and its results. A killed run loses one at most."""

    kind: Literal["time", "memory"]
    topic: str
    direction: str
    length: Length | None
    """None where several lengths are timed in the same rounds"""
    cases: tuple[tuple[str, Length], ...]
    """(competitor, length) of all that is measured; of memory it is one"""
    run: str = "not recorded"
    """the process run that made it"""
    failures: list[Failure] = []
    samples: list[Sample] = []
    """of competitors timed in turn, so all have as many rounds"""
    chunk_size: Length | None = None
    """tokens of a chunk of the operation; with the topic "rate" it is there"""
    case: str = ""
    """whose memory it is"""
    rise: Natural | None = None
    returned: Natural | None = None
    """bytes, as ``results.memory`` has them"""
    method: str = ""

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS.get(self.topic, ())[-1 if self.kind == "memory" else 0 :]:
            raise ValueError(
                f"topic and direction are {self.topic!r} and {self.direction!r}; expected a topic of "
                f"{', '.join(DIRECTIONS)} and a direction it is measured in"
            )
        if self.kind == "memory" and not (self.case and self.length):
            raise ValueError("case or length is missing")
        if self.topic == "rate" and self.chunk_size is None:
            raise ValueError("chunk_size is missing")
        if len({len(sample.seconds) for sample in self.samples}) > 1:
            raise ValueError("its samples differ in their number of rounds")

    def __str__(self) -> str:
        names = ", ".join(dict.fromkeys(name for name, _ in self.cases))
        lengths = ", ".join(f"{n:,}" for n in dict.fromkeys(n for name, n in self.cases if name not in (SGEMM, COPY)))
        return f"{self.kind} of {self.topic}, {self.direction}, N = {lengths}: {names}"

    @property
    def plan(self) -> tuple[object, ...]:
        """The case that this measures."""
        return self.kind, self.topic, self.direction, self.length, self.case, frozenset(self.cases)

    @property
    def sentences(self) -> list[str]:
        """One for each failure."""
        what = f"{self.kind} of {self.topic}, {self.direction}"
        return [f"{what}, N = {each.length:,}: {each.case}: {each.reason}" for each in self.failures]


def read_config(comparison: Comparison) -> SpeedConfig:
    """The settings of a comparison; those that an older version did not record have their defaults.

    Raises:
        ValueError: a setting is of the wrong type or out of range.
    """
    config = msgspec.json.encode(PRESETS["cpu"] | comparison.config)
    return decoded(config, SpeedConfig, "comparison.json, config", "run the comparison again to write it anew")


def read_records(root: Path) -> list[Measurement]:
    """Every measurement; where one was made again, the later.

    Raises:
        ValueError: a line is no measurement; the message names it.
    """
    lines = read_lines(root / RECORDS, REMEDY)
    found = {}
    for line, where, remedy in lines:
        record = decoded(line, Measurement, where, remedy)
        if record.kind == "time" and not (record.samples or record.failures):  # as it is planned
            raise wrong_file(where, "is wrong: samples are missing", remedy)
        found[record.plan[:-1]] = record
    return list(found.values())


def append_record(root: Path, record: Measurement) -> None:
    """Add a line, on the disk before this returns, to all that is there.

    What a killed run left of a line is cut off first.
    """
    path = root / RECORDS
    before = read_file(path, REMEDY) if path.exists() else b""
    write_atomically(path, before[: before.rfind(b"\n") + 1] + msgspec.json.encode(record) + b"\n")
