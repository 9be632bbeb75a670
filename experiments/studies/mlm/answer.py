"""The answer of the study of masked tokens."""

from experiments.report.answer import Findings, best

BERT, ROFORMER = "softmax-learned", "softmax-rope"


def answer(found: Findings) -> str:
    """RoPE against BERT's positions, then the best variant and the best of the other kind of attention."""
    learned, rope = found.final(BERT), found.final(ROFORMER)
    if not (learned.n and rope.n):
        return best(found)
    gain = learned.mean - rope.mean
    surely = "" if found.is_sure(f"{ROFORMER}-learned-loss") else ", not beyond doubt"
    side = "below" if gain > 0 else "above"
    return (
        f"With RoPE softmax attention ends {abs(gain):.2f} {found.comparison.objective.unit} {side} learned "
        f"positions{surely}. {best(found)}"
    )
