"""The answer of the study of GLUE, for one task."""

from experiments.analysis.statistics import Estimate
from experiments.report.answer import Findings, best

BERT, ROFORMER = "softmax-learned", "softmax-rope"


def answer(found: Findings) -> str:
    """RoPE against learned positions, then the best variant and the best of the other kind of attention.

    No best one is named where at most half of them are clearly better than one answer to all.
    """
    learned, rope = found.final(BERT), found.final(ROFORMER)
    if not (learned.n and rope.n):
        return best(found)
    both = (
        f"With RoPE softmax attention has {percent(rope)} %, with learned positions {percent(learned)} %{_of(found)}."
    )
    floor, finals = found.comparison.floor, [found.final(variant.name) for variant in found.finished]
    if floor is not None and 2 * sum(_least(each) > floor for each in finals) <= len(finals):
        return both
    return f"{both} {best(found)}"


def _least(found: Estimate) -> float:
    return found.low if found.has_interval else found.mean


def percent(found: Estimate) -> str:
    """A mean in percent, with half of its interval's width if there is one."""
    half = f" ± {50 * (found.high - found.low):.1f}" if found.has_interval else ""
    return f"{100 * found.mean:.1f}{half}"


def _of(found: Findings) -> str:
    """What is in percent, and of which class where it is of one."""
    objective = found.comparison.objective
    if objective.metric == "accuracy":
        return " (accuracy)"
    second = repr(objective.classes[1]) if len(objective.classes) == 2 else "the second class"
    return f" ({objective.unit.replace('the second class', second)})"
