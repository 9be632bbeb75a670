"""The launchers: a new one is a file beside this one and a line here, or an installed package's entry point."""

from collections.abc import Callable
from typing import Any

from experiments.extensions import Registry
from experiments.launch.launcher import Launcher
from experiments.launch.local import Local
from experiments.launch.ray import Ray
from experiments.launch.resources import ONE_CORE, Resources, parse_resources
from experiments.launch.slurm import Slurm
from experiments.launch.time_limit import TimeLimit

LAUNCHERS: Registry[Callable[..., Launcher]] = Registry(
    "launcher", "linear_rope.launchers", {"local": Local, "ray": Ray, "slurm": Slurm}
)


def is_elsewhere(name: str) -> bool:
    """Whether a launcher's runs are on other machines, so that it is told their resources, and knows the room there."""
    return bool(getattr(LAUNCHERS[name], "elsewhere", False))


def check_resources(name: str, resources: str | None) -> None:
    """Raises ValueError if a launcher takes no resources, or they are no such text."""
    if resources is not None and not is_elsewhere(name):
        raise ValueError(
            f"--resources is for launchers that reserve them (ray, slurm); leave it out with --launcher {name}"
        )
    parse_resources(resources, ONE_CORE)


def make_launcher(
    name: str,
    *,
    workers: int | None,
    run_timeout: float,
    resources: str | None,
    default: Resources,
    limit: TimeLimit | None = None,
) -> Launcher:
    """A launcher by its name; without ``workers`` one whose runs are elsewhere starts as many as there is room for.

    Raises ValueError if it cannot be had, or not with such resources.
    """
    options: dict[str, Any] = {"run_timeout": run_timeout} | ({} if workers is None else {"workers": workers})
    if limit is not None:
        options |= {"may_start": limit.allows, "is_over": limit.is_over}
    if is_elsewhere(name):
        options["resources"] = parse_resources(resources, default)
    return LAUNCHERS[name](**options)
