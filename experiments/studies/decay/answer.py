"""The answer of the decay study."""

from experiments.analysis.verdicts import SUPPORTED
from experiments.report.answer import Findings


def answer(found: Findings) -> str:
    """First what trained models do, then content whose scores are known."""
    said = []
    falls, trained = found.supported("-attention")
    steeper, compared = found.supported("-steeper")
    if trained:
        said.append(
            f"In trained models it does: attention falls with distance in {falls} of {trained} variants with RoPE, and "
            f"more steeply than without positions in {steeper} of {compared}."
        )
    if found.verdict("gaussian-flat") == SUPPORTED:
        said.append("RoPE alone does not bring it: with random queries and keys there is no decay.")
    if found.verdict("not-monotone-128") == SUPPORTED:
        said.append("A key equal to its query scores less at distance 128 than at 256.")
    return " ".join(said)
