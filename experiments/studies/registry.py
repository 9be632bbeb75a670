"""The experiments: a new one is a file beside this one, and a line here.

An experiment is a module with these names:

* ``QUESTION`` (what it asks), ``METHOD`` (how it is measured) and ``NOT_SHOWN`` (what it does not show), sentences for
  the report;
* ``CLAIMS``, a tuple of ``claims.Claim``, each judged on every comparison that references.py lists for the experiment;
* ``VARIANTS``, the variants it trains by default (with the general presets, unless presets.py has some of its own);
* ``measure(root, comparison, objective)``: measures the models into CSV files of ``root``; returns sentences on
  what could not be measured;
* ``figures(root, output, comparison, curves, summary)``: its figures, from files of ``root`` alone, into ``output``.

An experiment that trains nothing has no ``VARIANTS``. It says what it measures with ``settings(preset, device)`` (a
frozen dataclass), ``missing(root, settings)`` (the measurements still to make) and ``notes(root, settings)`` (sentences
about what is not part of it and what failed, as things are now); its ``measure`` returns a sentence for each failure.
"""

from types import ModuleType

from experiments.studies import copying, mask
from experiments.studies.convergence import study as convergence
from experiments.studies.decay import study as decay
from experiments.studies.denominator import study as denominator
from experiments.studies.features import study as features
from experiments.studies.length import study as length
from experiments.studies.pairing import study as pairing
from experiments.studies.recall import study as recall
from experiments.studies.speed import study as speed

STUDIES: dict[str, ModuleType] = {
    "convergence": convergence,
    "decay": decay,
    "denominator": denominator,
    "features": features,
    "length": length,
    "mask": mask,
    "pairing": pairing,
    "recall": recall,
    "copying": copying,
    "speed": speed,
}


def get(name: str) -> ModuleType:
    """The experiment of a name. Raises ValueError that lists the names there are."""
    if name not in STUDIES:
        raise ValueError(f"there is no experiment {name!r}; choose from {', '.join(STUDIES)}")
    return STUDIES[name]
