"""JSON of which everything is checked, and what is wrong told in one line: the file, the place in it, what came."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeVar

import msgspec
from msgspec import Meta

DEEPEST = 32
"""levels of lists and objects in a JSON file"""
SHOWN = 60
"""characters of a wrong value that a message repeats"""

T = TypeVar("T")


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


def converted(
    value: Any, kind: type[T], source: Source, place: str = "$", choices: Mapping[str, tuple[str, ...]] | None = None
) -> T:
    """The value as an object of a type that msgspec knows, a dataclass say.

    Args:
        place: where the value is in the file.
        choices: of the names whose values are one of a few, these values, for messages.

    Raises:
        ValueError: it is not of that type.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise source.error(_problem(str(error), value, place, choices or {})) from None


def _problem(message: str, value: Any, place: str, choices: Mapping[str, tuple[str, ...]]) -> str:
    """What msgspec says, with the value that came, to stand behind the file's name."""
    said, _, path = message.partition(" - at ")
    inner = path.strip("`").removeprefix("$")
    where = "" if place + inner == "$" else f": {place}{inner}"
    missing = re.fullmatch(r"Object missing required field `(.*)`", said)
    if missing:
        return f"{where} lacks {missing[1]}"
    found = _found(value, inner)
    came = f"{where} is {shown(found[0])}" if found else where or ": the whole"
    few = choices.get(inner.rpartition(".")[2])
    if said.startswith("Invalid enum value") and few:
        return f"{came}, expected one of {', '.join(few)}"
    said = said.partition(", got ")[0] if found else said
    return f"{came}, {said[:1].lower()}{said[1:]}"


def _found(value: Any, path: str) -> list[Any]:
    """The value at a path such as ``.seeds[0]``, in a list; an empty one if the path does not say which it is."""
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        if index == "...":
            return []
        value = value[name] if name else value[int(index)]
    return [value]


def shown(value: Any) -> str:
    """A value as a message repeats it, cut where it is long."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


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


Length = Annotated[int, Meta(ge=1, le=2**40)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=1e-12, le=1e12)]
Number = Annotated[float, Meta(ge=-1e100, le=1e100)]
CHOICES: dict[str, tuple[str, ...]] = {"kind": ("time", "memory")}


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
