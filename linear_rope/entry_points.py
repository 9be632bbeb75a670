"""What a name stands for: built in, or what an installed package says under an entry point's group."""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any


def find_by_name(argument: str, name: str, built_in: Mapping[str, Any], group: str, *, otherwise: str = "") -> Any:
    """What ``name`` stands for.

    Args:
        argument: what the name was given as, for the message.
        name: looked for in ``built_in``, and only if it is not there among the entry points, so that nothing of other
            packages is read or imported without need, and none can take the place of what is built in.
        built_in: by name.
        group: of the entry points.
        otherwise: what else the argument can be, for the message.

    Raises:
        ValueError: there is no such name; the message lists those that there are, with the nearest, or says which
            package's could not be imported.
    """
    if name in built_in:
        return built_in[name]
    installed = {entry.name: entry for entry in entry_points(group=group)}
    if name in installed:
        entry = installed[name]
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"{argument} is {name!r}, which an installed package has as {entry.value}, but that cannot be "
                f"imported ({error}); mend or remove that package"
            ) from error
    names = (*built_in, *installed)
    nearest = get_close_matches(str(name), names, n=1)
    raise ValueError(
        f"{argument} is {name!r}; "
        + (f"did you mean {nearest[0]!r}? " if nearest else "")
        + f"choose from {', '.join(map(repr, names))}{otherwise}"
    )
