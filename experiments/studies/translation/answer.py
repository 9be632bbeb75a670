"""The answer of the study of translation."""

from experiments.judge.statistics import Estimate, estimate
from experiments.report.answer import Findings
from experiments.show.words import in_words
from experiments.studies.translation.measure import SCORES

GAINS = {
    "RoPE gives softmax attention": ("softmax-rope", "softmax-sinusoidal", "sinusoidal positions"),
    "RoPE after the map gives elu+1": ("elu+1-rope-after", "elu+1-none", "no positions"),
}
"""what is said of a variant, that variant, another one, and what a sentence calls the other"""


def answer(found: Findings) -> str:
    """The best variant's BLEU beside the best of the other kernel, and what RoPE gives to each of the two."""
    table = SCORES.read(found.root)
    if table is None:
        return ""
    bleu = table.groupby("variant")["bleu"].agg(list).map(estimate)
    trained = sorted(
        (variant for variant in found.comparison.variants if variant.name in bleu.index),
        key=lambda variant: -bleu[variant.name].mean,
    )
    if not trained:
        return ""
    first, *others = trained
    said = [f"{in_words(first)} has the highest mean, {shown(bleu[first.name])} BLEU"]
    nearest = next((each for each in others if (each.kernel == "softmax") != (first.kernel == "softmax")), None)
    if nearest is not None:
        kind = "softmax" if nearest.kernel == "softmax" else "linear"
        softmax, linear = (first, nearest) if kind == "linear" else (nearest, first)
        surely = _unless_sure(found, f"{linear.name}-{softmax.name}-behind")
        said.append(f"the best {kind} variant, {in_words(nearest)}, has {shown(bleu[nearest.name])}{surely}")
    sentence = "; ".join(said)
    told = [f"{sentence[0].upper()}{sentence[1:]}."]
    for gives, (variant, other, words) in GAINS.items():
        if {variant, other} <= {*bleu.index}:
            gain = bleu[variant].mean - bleu[other].mean
            surely = _unless_sure(found, f"{variant}-{other}-bleu")
            told.append(f"{gives} {abs(gain):.1f} BLEU {'more' if gain > 0 else 'less'} than {words}{surely}.")
    return " ".join(told)


def _unless_sure(found: Findings, key: str) -> str:
    """Words behind a difference; none where the claim of this key leaves no doubt on which side of zero it is."""
    return "" if found.is_sure(key) else ", not beyond doubt"


def shown(found: Estimate) -> str:
    """A mean, with its interval if there is one."""
    interval = f" (95 % interval {found.low:.1f} to {found.high:.1f})" if found.has_interval else ""
    return f"{found.mean:.1f}{interval}"
