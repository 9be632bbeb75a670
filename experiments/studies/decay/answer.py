"""The answer of the decay study."""

from experiments.judge.verdicts import SUPPORTED
from experiments.report.answer import Findings
from experiments.report.answer import answer as of_any
from experiments.studies.decay.measure import SCORES


def answer(found: Findings) -> str:
    """First what trained models do, then content whose scores are known, then what a decay does."""
    said = []
    falls, trained = found.supported("-attention")
    steeper, compared = found.supported("-steeper")
    if trained:
        said.append(
            f"In trained models {'it does' if falls == trained else 'not always'}: attention falls with distance in "
            f"{falls} of {trained} variants with RoPE, and more steeply than without positions in {steeper} of "
            f"{compared}."
        )
    if found.verdict("gaussian-flat") == SUPPORTED:
        said.append("RoPE alone does not bring it: with random queries and keys there is no decay.")
    if found.verdict("not-monotone-128") == SUPPORTED:
        scores = SCORES.read(found.root)
        assert scores is not None  # the claim is of them
        near, far = (scores[scores["distance"] == distance]["equal"].mean() for distance in (128, 256))
        said.append(
            "For a key equal to its query the score falls, and it is not monotone: "
            f"{near:.2f} at distance 128, {far:.2f} at 256."
        )
    said += [row.claim.statement for key, row in found.rows.items() if "-than-" in key and row.verdict == SUPPORTED]
    return " ".join(said) or of_any(found)
