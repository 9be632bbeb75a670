"""What a launcher that shares machines out reserves for a run: ``--resources cpu=2,gpu=0.25,memory=8``."""

import math
from typing import NamedTuple

from experiments.extensions import choices


class Resources(NamedTuple):
    """Of one run."""

    cpu: float = 1
    """cores"""
    gpu: float = 0
    """GPUs, or a part of one"""
    memory: float | None = None
    """GiB"""
    minutes: float | None = None
    """the longest that it may take at a time, where there is such a limit"""


ONE_CORE = Resources()


def parse_resources(text: str | None, default: Resources) -> Resources:
    """The resources in a text such as "cpu=2,gpu=0.25"; what it does not name is the default's.

    Raises ValueError if it is not such a text.
    """
    found: dict[str, float] = {}
    for part in [] if text is None else text.split(","):
        name, _, value = part.partition("=")
        if name not in Resources._fields:
            raise ValueError(f"--resources has {name!r}; {choices(name, list(Resources._fields))}")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = math.nan
        if not 0 <= found[name] < math.inf or (name != "gpu" and found[name] == 0):
            raise ValueError(f"--resources has {part!r}; give a positive number, as {name}=2")
    return default._replace(**found)
