"""Whether one variant is better than another, or as good, from their differences at the seeds that both have."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import Literal, NamedTuple

from experiments.judge.significance import p_values
from experiments.judge.statistics import SMALLEST_SAMPLE, Estimate, estimate
from experiments.judge.verdicts import ALPHA

SHARES = ("accuracy", "f1", "matthews", "spearman")
"""metrics from 0 to 1, or from -1 to 1"""
LOSS_MARGIN, SHARE_MARGIN = 0.02, 0.05
"""differences that matter where nothing else is said: of a loss (bits per byte), and of a share (5 points)"""


class PairedTest(NamedTuple):
    """What paired differences say. For a verdict within a family of many, replace the p by adjusted ones."""

    estimate: Estimate
    """the mean with its 95 % interval"""
    p_different: float
    """two-sided, of the t test of a mean of 0; NaN where there is no interval"""
    p_equivalent: float
    """of two one-sided t tests (TOST), the larger: how likely so small a difference is if the mean is at a margin, or
    beyond"""

    @property
    def outcome(self) -> Literal["below", "above", "equivalent", "undecided"]:
        """The mean is below 0, above, or inside the margin; each is shown at 5 %, or it is undecided.

        Both can be shown: a small difference that is known well. Then it is the difference that counts. Both are true,
        and of two true statements this one says more: its interval tells that less than the margin is at stake, while
        "no difference beyond the margin" would hide which one is lower. So equivalence is what is said only where zero
        is not excluded. Which one comes first changes no error rate: each test keeps its own 5 % where it can be wrong.
        """
        if self.p_different < ALPHA:
            return "below" if self.estimate.mean < 0 else "above"
        return "equivalent" if self.p_equivalent < ALPHA else "undecided"

    def verdict(self, a: str, b: str, margin: float, better: Literal["lower", "higher"]) -> str:
        """The outcome in words, of differences a - b: the better one is named."""
        found, outcome = self.estimate, self.outcome
        if outcome == "equivalent":
            return f"no difference beyond {margin:g}"
        if outcome == "undecided":
            few = f"n = {found.n}, and {SMALLEST_SAMPLE} are needed"
            why = f": {few if found.n < SMALLEST_SAMPLE else 'all differences are equal'}"
            return f"undecided{_interval(found.low, found.high, '+.4f') if found.has_interval else why}"
        low, high = sorted((abs(found.low), abs(found.high)))
        name = a if (outcome == "below") == (better == "lower") else b
        return f"{name} {better} by {abs(found.mean):.4f}{_interval(low, high, '.4f')}"


def paired_test(differences: Sequence[float], margin: float, resolution: float = 0.0) -> PairedTest:
    """Test a mean of paired differences for being other than 0, and for being inside ±margin.

    The first is the usual t test: p below 0.05 is a 95 % interval that leaves 0 out. The second is two one-sided t
    tests at 5 %, the standard for equivalence: p below 0.05 is a 90 % interval inside ±margin, so the 95 % interval
    that is shown may reach a little beyond.

    Args:
        differences: one a seed; fewer than three allow no test.
        margin: the smallest difference that matters, above 0.
        resolution: what one value can tell apart; the standard deviation is taken to be no less. Where it is 0, equal
            differences allow no test, as their spread is not known.
    """
    found = estimate(differences, resolution)
    if found.n < SMALLEST_SAMPLE or (not resolution and min(differences) == max(differences)):
        return PairedTest(Estimate(found.n, found.mean), nan, nan)
    different = 2 * min(p_values(differences, (0.0, inf), 0.0, resolution))
    equivalent, _ = p_values(differences, (-margin, margin), 0.0, resolution)
    return PairedTest(found, different, equivalent)


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
    0.02", or "undecided [low, high]", with their names; see ``PairedTest.outcome``"""

    def __str__(self) -> str:
        interval = "" if isnan(self.low) else _interval(self.low, self.high, "+.4f")
        words = self.metric.replace("_", " ")
        return f"{self.a} - {self.b}, test {words}, n = {self.n}: {self.mean:+.4f}{interval}; {self.verdict}"


def _interval(low: float, high: float, pattern: str) -> str:
    return f" [{low:{pattern}}, {high:{pattern}}]"
