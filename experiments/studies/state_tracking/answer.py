"""The answer of the study of state tracking."""

from experiments.analysis.statistics import estimate
from experiments.records.schema import VariantRecord
from experiments.report.answer import Findings, in_words, listed
from experiments.studies.recall.answer import shown
from experiments.studies.state_tracking.measure import ACCURACIES, FACTORS, TRACKS, guessing


def answer(found: Findings) -> str:
    """Which variants track at the training length, and which beyond."""
    table = ACCURACIES.read(found.root)
    if table is None:
        return ""
    means = table.groupby(["variant", "factor"])["accuracy"].agg(list).map(estimate)
    trained = [variant for variant in found.comparison.variants if (variant.name, 1) in means.index]

    def told(factor: int) -> list[str]:
        mine = [(variant, means[variant.name, factor]) for variant in trained]
        return [f"{in_words(variant)} ({shown(each)})" for variant, each in mine if each.mean >= TRACKS]

    def best(factor: int) -> VariantRecord:
        return max(trained, key=lambda variant: means[variant.name, factor].mean)

    long, short = told(FACTORS[-1]), told(1)
    if long:
        beyond = f"Up to four times the training length the state is tracked by {listed(long)}."
    else:
        share = shown(means[best(FACTORS[-1]).name, FACTORS[-1]])
        beyond = (
            f"None goes on to four times the training length: the best gets {share} of the products right there; "
            f"guessing gets {guessing(found.comparison):.0%}."
        )
    if short:
        within = f"At the training length it is tracked by {listed(short)}."
    else:
        closest = best(1)
        within = (
            f"None tracks it at the training length; closest is {in_words(closest)} ({shown(means[closest.name, 1])})."
        )
    return f"{beyond} {within}"
