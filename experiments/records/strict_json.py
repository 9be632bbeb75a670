"""JSON of which everything is checked, and what is wrong told in one line: the file, the place in it, what came."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

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
