"""The answer of the pairing study."""

from experiments.analysis.verdicts import SUPPORTED
from experiments.report.answer import Findings

SIZES = (32, 64, 128, 256)
DISTANCES = (8, 64, 512)


def answer(found: Findings) -> str:
    """First the loss with the paired map, then the variance of its score."""
    keys, said = [f"loss-{size}" for size in SIZES], []
    measured = [found.rows[key].estimate.mean for key in keys if found.size(key)]
    lower = [key for key in keys if found.verdict(key) == SUPPORTED]
    if lower:
        said.append(f"At equal M the paired map lowers the loss at {len(lower)} of {len(measured)} sizes.")
    elif measured:
        how = "higher" if min(measured) > 0 else "apart"
        said.append(
            f"No: at equal M no lower loss was found with the paired map; it was {found.range(keys)} "
            f"{found.comparison.objective.unit} {how}."
        )
    draws = [f"variance-equal-draws-{distance}" for distance in DISTANCES]
    if all(found.verdict(key) == SUPPORTED for key in draws):
        said.append(
            f"The variance of its score is lower, by {found.range(draws, '.0%')}, only where both maps have as many "
            "draws, and the paired one twice the features."
        )
    return " ".join(said)
