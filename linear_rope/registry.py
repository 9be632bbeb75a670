"""Named things that a user can choose, and how an installed package or a module of one's own adds to them.

A built-in name comes first. What it is not is looked for among what was added, and among the entry points of installed
packages. Nothing here imports PyTorch.
"""

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from inspect import signature
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MOST = 60
"""names that a message lists; more would hide what it says"""
MOST_OF_MANY = 12
"""names that it lists where there are more than that"""


class Registry(MutableMapping[str, T], Generic[T]):
    """Things of one kind by name: those built in, those of installed packages, and added ones.

    Iterating over it names all of them; only what is looked up is imported. ``registry["name"] = thing`` adds one, or
    takes the place of another.

    Args:
        kind: what messages call one of them.
        group: of the entry points under which packages name theirs.
        built_in: by name.
        argument: whether the kind is an argument's name, which messages then say as those on other arguments do.
        otherwise: what else the argument can be, for messages.
    """

    def __init__(
        self, kind: str, group: str, built_in: Mapping[str, T], *, argument: bool = False, otherwise: str = ""
    ) -> None:
        self._kind, self._group, self._argument, self._otherwise = kind, group, argument, otherwise
        self._items: dict[str, T] = dict(built_in)
        self._from_outside: dict[str, str] = {}

    def add(self, name: str, item: T, module: str) -> None:
        """Add one, from a ``--plugin`` module. Raises ValueError if there is one of that name already."""
        if name in self:
            raise ValueError(f"{module} adds the {self._kind} {name!r}, and there is one already; give it another name")
        self._items[name] = item
        self._from_outside[name] = module

    def __getitem__(self, name: str) -> T:
        """The thing of a name.

        Raises ValueError that lists the names there are, and the nearest one, or says why it cannot be imported.
        """
        if name not in self._items:
            point = self._points().get(name)
            if point is None:
                came = f"{self._kind} is {name!r}" if self._argument else f"there is no {self._kind} {name!r}"
                told = choices(name, list(self), repr if self._argument else str)
                raise ValueError(f"{came}; {told}{self._otherwise}")
            try:
                self._items[name] = point.load()
            except Exception as error:
                raise ValueError(
                    f"the {self._kind} {name!r} cannot be imported ({type(error).__name__}: {error}); mend or remove "
                    f"the installed package that names {point.value}"
                ) from error
            self._from_outside[name] = point.module
        return self._items[name]

    def origin(self, name: str) -> str | None:
        """The module from outside that a thing came from; None for one that is built in, or was not looked up."""
        return self._from_outside.get(name)

    def each(self) -> Iterator[tuple[str, T | str]]:
        """Every name with its thing or, of one that cannot be loaded, with a sentence that says why."""
        for name in self:
            try:
                found: T | str = self[name]
            except ValueError as error:
                found = str(error)
            yield name, found

    def get(self, name: str, default: Any = None) -> Any:
        """The thing of a name, or ``default`` if there is none."""
        return self[name] if name in self else default  # noqa: SIM401

    def __setitem__(self, name: str, item: T) -> None:
        self._items[name] = item

    def __delitem__(self, name: str) -> None:
        del self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._items, *self._points()]))

    def __len__(self) -> int:
        return len(set(self))

    def __contains__(self, name: object) -> bool:
        return name in self._items or name in self._points()

    def _points(self) -> Mapping[str, EntryPoint]:
        return _entry_points(self._group, tuple(sys.path))


@lru_cache
def _entry_points(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Those of installed packages by name, in its order."""
    return {point.name: point for point in sorted(_installed(path).select(group=group), key=lambda point: point.name)}


@lru_cache
def _installed(path: tuple[str, ...]) -> Any:
    """The entry points of all groups: to read them takes a while."""
    return entry_points()


def taken(make: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that ``make`` names as arguments."""
    names = signature(make).parameters
    return {name: value for name, value in settings.items() if name in names}


def forget_packages() -> None:
    """Read the entry points again at the next question, as after a change of ``sys.path``'s packages."""
    _entry_points.cache_clear()
    _installed.cache_clear()


def choices(name: str, names: list[str], form: Callable[[str], str] = str) -> str:
    """The end of a message on a name that there is not: the nearest one, if one is near, and those there are."""
    near = difflib.get_close_matches(str(name), names, n=1)
    few = len(names) <= MOST
    listed = ", ".join(map(form, names if few else names[:MOST_OF_MANY]))
    more = "" if few else f" and {len(names) - MOST_OF_MANY} more (see `list` or --help)"
    return (f"did you mean {near[0]!r}? " if near else "") + f"choose from {listed}{more}"
