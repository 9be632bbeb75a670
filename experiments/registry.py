"""The experiments: a new one is a file beside this one, and a line here.

An experiment is a module with ``QUESTION`` (what it asks and how), ``VARIANTS`` (the arms it trains by default),
``measure(root, comparison, task)`` (what it measures on the trained models, into CSV files of ``root``; it returns
sentences about what could not be measured) and
``figures(root, output, comparison, curves, summary)`` (its figures, from files of ``root`` alone, into ``output``).

An experiment that trains nothing has no ``VARIANTS``. It says what it measures with ``settings(preset, device)`` (a
frozen dataclass), ``missing(root, settings)`` (the measurements still to make) and ``notes(root, settings)`` (sentences
about what is not part of it and what failed, as things are now); its ``measure`` returns a sentence for each failure.
"""

from types import ModuleType

from experiments import convergence, decay, features, speed

EXPERIMENTS: dict[str, ModuleType] = {
    "convergence": convergence,
    "decay": decay,
    "features": features,
    "speed": speed,
}


def get(name: str) -> ModuleType:
    """The experiment of a name. Raises ValueError that lists the names there are."""
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; choose from {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
