"""The answer of the mask study."""

from experiments.report.answer import Findings


def answer(found: Findings) -> str:
    """First what new features cost in training, then in a finished model."""
    unit, said = found.comparison.objective.unit, []
    after, before, none = (found.size(f"{which}-100") for which in ("after", "before", "none"))
    if after and before and none:
        said.append(
            f"Features drawn anew every 100 steps cost {none} {unit} without positions, {after} with RoPE after the "
            f"map and {before} with RoPE before it."
        )
    if found.size("new-features-after"):
        said.append(
            f"In a finished model with RoPE after the map new features cost {found.size('new-features-after')}, "
            f"{found.size('new-features-after-more-than-before')} more than before it."
        )
    return " ".join(said)
