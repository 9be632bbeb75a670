"""Whether one variant is better than another, or as good, from their differences at the seeds that both have."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Literal

from experiments.judge.significance import p_values
from experiments.judge.statistics import SMALLEST_SAMPLE, Estimate, estimate, with_interval
from experiments.judge.verdicts import ALPHA

SHARES = {"accuracy": 0, "f1": 0, "matthews": -1, "spearman": -1}
"""metrics that are at most 1, and the least that they can be"""
LOSS_MARGIN, SHARE_MARGIN = 0.02, 0.05
"""differences that matter where nothing else is said: of a loss (bits per byte), and of a share (5 points)"""


@dataclass(frozen=True)
class Difference:
    """Variant a minus variant b, paired by seed, and what follows."""

    a: str
    b: str
    metric: str
    """on the test split"""
    n: int
    """seeds that both have finished"""
    mean: float
    """of a - b"""
    low: float
    high: float
    """of the 95 % interval (Student's t); NaN below three seeds, or where no spread is known"""
    margin: float
    """the smallest difference that matters"""
    verdict: str
    """"A lower by x [low, high]" or "B lower by ..." (of a metric where more is better: higher), "no difference beyond
    0.02", or "undecided [low, high]", with their names; see ``verdict``"""

    def __str__(self) -> str:
        found = f"{with_interval(self.mean, self.low, self.high, '+.4f')}; " if self.n else ""
        return f"{self.a} - {self.b}, test {self.metric.replace('_', ' ')}, n = {self.n}: {found}{self.verdict}"


def paired_test(differences: Sequence[float], margin: float, resolution: float = 0.0) -> tuple[Estimate, float, float]:
    """The mean of paired differences, how likely they are of a mean of 0, and of one at ±margin or beyond.

    The first p is that of the usual t test: below 0.05 is a 95 % interval that leaves 0 out. The second is of two
    one-sided t tests at 5 %, the standard for equivalence: below 0.05 is a 90 % interval inside ±margin, so the 95 %
    interval that is shown may reach a little beyond. Both are NaN, and there is no interval, of fewer than three
    differences, and of equal ones, whose spread is not known, unless ``resolution`` says what one value can tell apart;
    the standard deviation is taken to be no less.
    """
    found = estimate(differences, resolution)
    if found.n < SMALLEST_SAMPLE or (not resolution and min(differences) == max(differences)):
        return Estimate(found.n, found.mean), nan, nan
    equivalent, _ = p_values(differences, (-margin, margin), 0.0, resolution)
    return found, 2 * min(p_values(differences, (0.0, inf), 0.0, resolution)), equivalent


def verdict(
    test: tuple[Estimate, float, float], a: str, b: str, margin: float, better: Literal["lower", "higher"]
) -> str:
    """What a test of a - b says in words: the better one is named where 0 is excluded at 5 %.

    A small difference that is known well is inside the margin, too. Then it is the difference that is said: both are
    true, its interval tells that less than the margin is at stake, while "no difference" would hide which is lower.
    """
    found, different, equivalent = test
    if different < ALPHA:
        low, high = sorted((abs(found.low), abs(found.high)))
        name = a if (found.mean < 0) == (better == "lower") else b
        return f"{name} {better} by {with_interval(abs(found.mean), low, high, '.4f')}"
    if equivalent < ALPHA:
        return f"no difference beyond {margin:g}"
    if found.has_interval:
        return f"undecided [{found.low:+.4f}, {found.high:+.4f}]"
    few = f"n = {found.n}, and {SMALLEST_SAMPLE} are needed"
    return f"undecided: {few if found.n < SMALLEST_SAMPLE else 'all differences are equal'}"
