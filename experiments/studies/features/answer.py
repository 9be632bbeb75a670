"""The answer of the features study."""

from experiments.analysis.verdicts import SUPPORTED
from experiments.report.answer import Findings


def answer(found: Findings) -> str:
    """How the error falls with M, then positive features and orthogonal directions."""
    said = []
    if found.size("one-over-m"):
        slope = found.rows["one-over-m"].estimate.mean
        said.append(f"The error falls with the number of features M as M^{slope:.2f}.")
    if found.verdict("positive-1") == found.verdict("trigonometric-0.5") == SUPPORTED:
        said.append("Positive features beat sines and cosines at input scale 1, and lose to them at 0.5.")
    fewer = [
        1 - 10**row.estimate.mean
        for key in ("orthogonal-0.25", "orthogonal-0.5", "orthogonal-on-softmax-none")
        if (row := found.rows.get(key)) and row.verdict == SUPPORTED
    ]
    if fewer:
        said.append(f"Orthogonal directions lower the typical error by {min(fewer):.0%} to {max(fewer):.0%}.")
    return " ".join(said)
