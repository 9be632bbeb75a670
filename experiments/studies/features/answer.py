"""The answer of the features study."""

from experiments.judge.verdicts import SUPPORTED
from experiments.report.answer import Findings
from experiments.studies.features.measure import RANDOM


def answer(found: Findings) -> str:
    """How the error falls with M, then positive features and orthogonal directions."""
    said = []
    if found.size("one-over-m"):
        left = 4 ** found.rows["one-over-m"].estimate.mean
        fall = f"Four times the features leave {left:.0%} of the error"
        if found.verdict("one-over-m") == SUPPORTED:
            fall = "The error falls as 1/M: four times the features, a quarter of the error"
        said.append(f"{fall}{_errors(found)}.")
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


def _errors(found: Findings) -> str:
    """Two points of the figure: mean errors of the kernel, of inputs as the claim's."""
    table = RANDOM.read(found.root)
    if table is None:
        return ""
    made = "part == 'curves' and head_dim == 16 and scale == 0.25 and estimator == 'positive' and directions == "
    means = table.query(f"{made} 'independent'").groupby("num_features")["kernel_error"].mean()
    few, many = ([count, means.get(count)] for count in (64, 256))
    return f" ({few[1]:.2g} with {few[0]} features, {many[1]:.2g} with {many[0]})" if few[1] and many[1] else ""
