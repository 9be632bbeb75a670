"""Named things that a user can choose, and how an installed package or a module of one's own adds to them.

A built-in name comes first. What it is not is looked for among the entry points of installed packages, and what a
``--plugin`` module has added. Whatever of it takes part in a run is named and hashed in the record (``origins``).
"""

import difflib
import hashlib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points, packages_distributions, version
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MOST = 60
"""names that a message lists; more would hide what it says"""
MOST_OF_MANY = 12
"""names that it lists where there are more than that"""


class Registry(Mapping[str, T], Generic[T]):
    """Things of one kind by name: those built in, those of installed packages (an entry-point group), and added ones.

    Iterating over it names all of them; only what is looked up is imported.
    """

    def __init__(self, kind: str, group: str, built_in: Mapping[str, T]) -> None:
        self._kind, self._group = kind, group
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
                raise ValueError(f"there is no {self._kind} {name!r}; {choices(name, list(self))}")
            try:
                self._items[name] = point.load()
            except Exception as error:
                raise ValueError(
                    f"the {self._kind} {name!r} cannot be loaded ({type(error).__name__}: {error}); mend or remove the "
                    f"installed package that names {point.value}"
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
    """Those of installed packages by name, in its order; read once for each ``sys.path``: that takes a while."""
    return {point.name: point for point in sorted(entry_points(group=group), key=lambda point: point.name)}


def choices(name: str, names: list[str]) -> str:
    """The end of a message on a name that there is not: the nearest one, if one is near, and those there are."""
    near = difflib.get_close_matches(name, names, n=1)
    few = len(names) <= MOST
    listed = ", ".join(names if few else names[:MOST_OF_MANY])
    more = "" if few else f" and {len(names) - MOST_OF_MANY} more (see `list` or --help)"
    return (f"did you mean {near[0]!r}? " if near else "") + f"choose from {listed}{more}"


def load_plugin(module: str) -> None:
    """Import a module of the user's, which adds to registries when it is imported.

    Raises:
        ValueError: it cannot be imported.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as python -m has it; an installed command has not
    try:
        importlib.import_module(module)
    except Exception as error:
        raise ValueError(
            f"--plugin {module} cannot be imported ({type(error).__name__}: {error}); give the name of a module that "
            "python -c 'import NAME' finds"
        ) from error
    _entry_points.cache_clear()


def origins(modules: Iterable[str]) -> list[dict[str, Any]]:
    """Of every module from outside: its name, its package and version, and the sha256 of its code."""
    found, packages = [], packages_distributions()
    for name in sorted(modules):
        package = next(iter(packages.get(name.partition(".")[0], [])), "")
        number = version(package) if package else ""
        found.append({"module": name, "package": package, "version": number, "sha256": _code_sha256(name)})
    return found


def _code_sha256(name: str) -> str:
    """Of the Python files of the module's top-level package, or of the file that it is."""
    top = sys.modules[name.partition(".")[0]]
    places = [Path(path) for path in getattr(top, "__path__", [])]
    files = sorted(path for place in places for path in place.rglob("*.py")) or [Path(str(top.__file__))]
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
