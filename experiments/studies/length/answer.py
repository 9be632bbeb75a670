"""The answer of the length study."""

from experiments.report.answer import Findings, listed

BREAK = {
    "softmax-rope": "softmax attention with RoPE by {}",
    "favor+-rope-before": "FAVOR+ by {} (before its map)",
    "favor+-rope-after": "FAVOR+ by {} (after its map)",
    "elu+1-rope-after": "elu+1 by {} (after its map)",
}


def answer(found: Findings) -> str:
    """How much the loss rises at 16 times the training length, with RoPE and with ALiBi."""
    unit = found.comparison.objective.unit
    worse = [text.format(size) for name, text in BREAK.items() if (size := found.size(f"{name}-breaks-16"))]
    said = []
    if worse:
        said.append(f"RoPE does not hold: at 16 times the training length the loss rises, of {listed(worse)} {unit}.")
    if found.size("softmax-alibi-gains-16"):
        gained = found.rows["softmax-alibi-gains-16"].estimate.mean
        said.append(f"ALiBi's {'falls' if gained < 0 else 'rises'} by {abs(gained):.2f}.")
    return " ".join(said)
