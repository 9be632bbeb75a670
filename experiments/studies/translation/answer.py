"""The answer of the study of translation."""

from experiments.analysis.statistics import Estimate, estimate
from experiments.report.answer import Findings, in_words
from experiments.studies.translation.measure import SCORES

REFERENCE = "softmax-rope"


def answer(found: Findings) -> str:
    """The best variant's BLEU, and what stands beside it: softmax attention with sinusoidal positions, and the other
    kernel's best.
    """
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
    said = [f"{in_words(first)} translates best, with {shown(bleu[first.name])} BLEU"]
    nearest = next((each for each in others if (each.kernel == "softmax") != (first.kernel == "softmax")), None)
    if nearest is not None:
        kind = "softmax" if nearest.kernel == "softmax" else "linear"
        said.append(f"the best {kind} variant, {in_words(nearest)}, has {shown(bleu[nearest.name])}")
    sentence = "; ".join(said)
    told = f"{sentence[0].upper()}{sentence[1:]}."
    if {REFERENCE, "softmax-sinusoidal"} <= {*bleu.index}:
        gain = bleu[REFERENCE].mean - bleu["softmax-sinusoidal"].mean
        told += f" With RoPE softmax attention has {gain:+.1f} BLEU against sinusoidal positions."
    return told


def shown(found: Estimate) -> str:
    """A mean, with its interval if there is one."""
    interval = f" ({found.low:.1f} to {found.high:.1f})" if found.has_interval else ""
    return f"{found.mean:.1f}{interval}"
