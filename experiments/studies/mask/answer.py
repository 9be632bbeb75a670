"""The answer of the mask study."""

from experiments.analysis.verdicts import SUPPORTED
from experiments.report.answer import Findings


def answer(found: Findings) -> str:
    """First what new features cost in training, then in a finished model."""
    unit, said = found.comparison.objective.unit, []
    after, before, none = (found.size(f"{which}-100") for which in ("after", "before", "none"))
    if after and before and none:
        more = found.rows["before-100"].estimate.mean > found.rows["after-100"].estimate.mean
        is_clear = SUPPORTED in (found.verdict("after-100"), found.verdict("new-features-after"))
        depends = f"Yes, and with RoPE before the map {'more' if more else 'less'} so" if is_clear else "Not shown"
        said.append(
            f"{depends}: features drawn anew every 100 steps cost {after} {unit} with RoPE after the map, {before} "
            f"with RoPE before it and {none} without positions."
        )
    if found.size("new-features-after"):
        said.append(
            f"In a finished model with RoPE after the map new features cost {found.size('new-features-after')}, "
            f"{found.size('new-features-after-more-than-before')} more than before it."
        )
    return " ".join(said)
