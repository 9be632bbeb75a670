"""The answer of the length study."""

from experiments.judge.verdicts import NOT_SUPPORTED, SUPPORTED
from experiments.report.answer import Findings
from experiments.report.answer import answer as of_any
from experiments.show.words import listed

BREAK = {
    "softmax-rope": "softmax attention by {}",
    "favor+-rope-before": "FAVOR+ by {} (before its map)",
    "favor+-rope-after": "FAVOR+ by {} (after its map)",
    "elu+1-rope-after": "elu+1 by {} (after its map)",
}


def answer(found: Findings) -> str:
    """How much the loss changes at 16 times the training length: with ALiBi, with RoPE, and with a decay."""
    unit = found.comparison.objective.unit
    worse = [text.format(size) for name, text in BREAK.items() if (size := found.size(f"{name}-breaks-16"))]
    said = [_with_a_decay(found)]
    if found.size("softmax-alibi-gains-16"):
        gained = found.rows["softmax-alibi-gains-16"].estimate.mean
        said.append(
            f"With ALiBi the loss of softmax attention {'falls' if gained < 0 else 'rises'} by {abs(gained):.2f} "
            f"{unit} at 16 times the training length."
        )
    if worse:
        where = "there" if any(said) else f"at 16 times the training length (in {unit})"
        said.append(f"RoPE does not hold: with it the loss rises {where}, of {listed(worse)}.")
    return " ".join(filter(None, said)) or of_any(found)


def _with_a_decay(found: Findings) -> str:
    """What a fixed decay does to the loss of elu+1 with RoPE, and how many variants with a decay hold."""
    cures, (hold, measured) = found.rows.get("decay-cures"), found.supported("-holds")
    if not (cures and cures.estimate.n):
        return ""
    verb = {SUPPORTED: "cures", NOT_SUPPORTED: "does not cure"}.get(cures.verdict, "may cure")
    return (
        f"A fixed decay {verb} what RoPE breaks on longer texts: at 16 times the training length it changes the rise "
        f"of the loss of elu+1 with RoPE after its map by {cures.estimate.mean:+.2f} "
        f"{found.comparison.objective.unit}. The loss of {hold} of {measured} variants with a decay holds."
    )
