"""The answer of the study of masked tokens."""

from experiments.report.answer import Findings, best, in_words, listed, settings_in_words

BERT, ROFORMER, LINEAR = "softmax-learned", "softmax-rope", "elu+1-rope-after"


def answer(found: Findings) -> str:
    """RoPE against BERT's positions, then linear attention against softmax attention, both with RoPE."""
    learned, rope = found.final(BERT), found.final(ROFORMER)
    if not (learned.n and rope.n):
        return best(found)
    unit = found.comparison.objective.unit
    gain = _apart(found, ROFORMER, BERT, f"{ROFORMER}-learned-loss")
    said = f"With RoPE softmax attention ends at {rope.mean:.2f} {unit}, {gain[0]} learned positions{gain[1]}."
    ends: list[str] = []
    for variant in found.comparison.variants:
        if variant.name.partition("@")[0] == LINEAR and found.final(variant.name).n:
            words = f"with {listed(settings_in_words(variant))}" if ends else f"{in_words(variant)} ends"
            beside, surely = _apart(found, variant.name, ROFORMER, f"{variant.name}-below-softmax")
            ends.append(f"{words} {beside} {'it' if ends else 'softmax attention'}{surely}")
    if not ends:
        return said
    return f"{said} {ends[0][0].upper()}{'; '.join(ends)[1:]}."


def _apart(found: Findings, variant: str, other: str, key: str) -> tuple[str, str]:
    """How far a variant ends below or above another one, and whether that is in doubt, by the claim if there is one."""
    mine, others = found.final(variant), found.final(other)
    by_intervals = mine.has_interval and others.has_interval and (mine.high < others.low or others.high < mine.low)
    sure = found.is_sure(key) if key in found.rows else by_intervals
    gap = mine.mean - others.mean
    return f"{abs(gap):.2f} {'above' if gap > 0 else 'below'}", "" if sure else ", not beyond doubt"
