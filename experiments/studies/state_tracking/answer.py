"""The answer of the study of state tracking."""

from experiments.analysis.statistics import estimate
from experiments.report.answer import Findings, in_words, listed
from experiments.studies.recall.answer import shown
from experiments.studies.state_tracking.measure import ACCURACIES, FACTORS, TRACKS


def answer(found: Findings) -> str:
    """Which variants track at the training length, and which beyond."""
    table = ACCURACIES.read(found.root)
    if table is None:
        return ""
    means = table.groupby(["variant", "factor"])["accuracy"].agg(list).map(estimate)
    trained = [variant for variant in found.comparison.variants if (variant.name, 1) in means.index]

    def told(factor: int, above: bool) -> list[str]:
        mine = [(variant, means[variant.name, factor]) for variant in trained]
        return [f"{in_words(variant)} ({shown(each)})" for variant, each in mine if (each.mean >= TRACKS) == above]

    long, short = told(FACTORS[-1], True), told(1, True)
    if long:
        said = f"Up to four times the training length the state is tracked by {listed(long)}."
    else:
        best = max(trained, key=lambda variant: means[variant.name, FACTORS[-1]].mean)
        said = (
            f"None goes on to four times the training length; the best there is {in_words(best)}, with "
            f"{shown(means[best.name, FACTORS[-1]])} of the products right."
        )
    within = f"At the training length it is tracked by {listed(short)}." if short else "None tracks it at all."
    return f"{said} {within}"
