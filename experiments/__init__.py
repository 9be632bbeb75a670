"""The comparison experiments: ``compare`` and ``load`` for Python, ``python -m experiments`` for the command line."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.commands.compare import compare
    from experiments.comparison import Comparison, TrainedRun, load

__all__ = ["Comparison", "TrainedRun", "compare", "load"]


def __getattr__(name: str) -> Any:
    """What the Python interface has, imported when it is asked for: the command line needs to answer at once."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "experiments.commands.compare" if name == "compare" else "experiments.comparison"
    return getattr(import_module(module), name)
