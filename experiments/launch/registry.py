"""The launchers: a new one is a file beside this one and a line here, or an installed package's entry point."""

from collections.abc import Callable

from experiments.extensions import Registry
from experiments.launch.launcher import Launcher
from experiments.launch.local import Local

LAUNCHERS: Registry[Callable[..., Launcher]] = Registry("launcher", "linear_rope.launchers", {"local": Local})
