"""The answer of the length study."""

from experiments.report.answer import Findings, listed

BREAK = {
    "softmax-rope": "softmax attention by {}",
    "favor+-rope-before": "FAVOR+ by {} (before its map)",
    "favor+-rope-after": "FAVOR+ by {} (after its map)",
    "elu+1-rope-after": "elu+1 by {} (after its map)",
}


def answer(found: Findings) -> str:
    """How much the loss changes at 16 times the training length, with ALiBi and with RoPE."""
    unit = found.comparison.objective.unit
    worse = [text.format(size) for name, text in BREAK.items() if (size := found.size(f"{name}-breaks-16"))]
    said = []
    if found.size("softmax-alibi-gains-16"):
        gained = found.rows["softmax-alibi-gains-16"].estimate.mean
        said.append(
            f"With ALiBi the loss of softmax attention {'falls' if gained < 0 else 'rises'} by {abs(gained):.2f} "
            f"{unit} at 16 times the training length."
        )
    if worse:
        where = "there" if said else f"at 16 times the training length (in {unit})"
        said.append(f"RoPE does not hold: with it the loss rises {where}, of {listed(worse)}.")
    return " ".join(said)
