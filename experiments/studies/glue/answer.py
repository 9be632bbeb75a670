"""The answer of the study of GLUE, for one task."""

from experiments.analysis.statistics import Estimate
from experiments.report.answer import Findings, best

BERT, ROFORMER = "softmax-learned", "softmax-rope"


def answer(found: Findings) -> str:
    """RoPE against learned positions, then the best variant and the best of the other kind of attention."""
    learned, rope = found.final(BERT), found.final(ROFORMER)
    if not (learned.n and rope.n):
        return best(found)
    both = f"With RoPE softmax attention has {percent(rope)} %, with learned positions {percent(learned)} %."
    return f"{both} {best(found)}"


def percent(found: Estimate) -> str:
    """A mean in percent, with half of its interval's width if there is one."""
    half = f" ± {50 * (found.high - found.low):.1f}" if found.has_interval else ""
    return f"{100 * found.mean:.1f}{half}"
