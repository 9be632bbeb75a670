"""The launchers: a new one is a file beside this one and a line here, or an installed package's entry point."""

from collections.abc import Callable

from experiments.extensions import Registry
from experiments.objects import ONE_CORE, parse_needs
from experiments.run.local import Local
from experiments.run.loop import Launcher
from experiments.run.ray import Ray
from experiments.run.slurm import Slurm

LAUNCHERS: Registry[Callable[..., Launcher]] = Registry(
    "launcher", "linear_rope.launchers", {"local": Local, "ray": Ray, "slurm": Slurm}, argument=True
)


def is_elsewhere(name: str) -> bool:
    """Whether a launcher's runs are on other machines, so that it is told their needs, and knows the room there."""
    return bool(getattr(LAUNCHERS[name], "elsewhere", False))


def check_resources(name: str, resources: str | None) -> None:
    """Raises ValueError if a launcher reserves no resources, or they are no such text."""
    if resources is not None and not is_elsewhere(name):
        raise ValueError(
            f"--resources is for launchers that reserve them (ray, slurm); leave it out with --launcher {name}"
        )
    parse_needs(resources, ONE_CORE)
