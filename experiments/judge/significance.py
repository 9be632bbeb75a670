"""How sure it is that a mean lies in a range, or outside: one-sided p-values, and their adjustment for many claims."""

from collections.abc import Sequence
from math import isfinite

import numpy as np
from scipy import stats

from experiments.judge.statistics import Spread, spreads_of


def p_values(
    values: Sequence[float],
    region: tuple[float, float],
    margin: float,
    resolution: float = 0.0,
    pooled: Spread | None = None,
) -> tuple[float, float]:
    """One-sided p of "the mean is in the region", and of "it is not, or by less than the margin".

    Of two or more values, not all equal unless a resolution above 0 is given, which the standard deviation is taken to
    be no less than. With a pooled spread the larger p counts, of that by the values' own and of that by the pooled one.
    The alternative of the second test is a union where the region has two ends: its p is the smaller of two, doubled.
    """
    low, high = region
    mean = float(np.mean(values))
    spreads = spreads_of(values, resolution, pooled)

    def above(bound: float, sign: int = 1) -> float:
        distance = sign * (mean - bound) * len(values) ** 0.5
        return max(float(stats.t.sf(distance / std, degrees)) for std, degrees in spreads)

    def below(bound: float) -> float:
        return above(bound, -1)

    inside = [above(low)] * isfinite(low) + [below(high)] * isfinite(high)
    outside = [below(low + margin)] * isfinite(low) + [above(high - margin)] * isfinite(high)
    return max(inside), min(1.0, len(outside) * min(outside))


def sign_test(outcomes: Sequence[float], region: tuple[float, float]) -> tuple[float, float]:
    """One-sided p of "1 is more frequent than -1" and of the opposite; reversed for a region below 0.

    Exact: of the outcomes that are not 0, each sign is as likely as the other if there is no difference.
    """
    inside = sum(region[0] < outcome < region[1] for outcome in outcomes)
    differing = sum(map(bool, outcomes))
    greater, less = (float(stats.binomtest(inside, differing, alternative=side).pvalue) for side in ("greater", "less"))
    return greater, less


def adjust(sides: Sequence[tuple[float, float] | None]) -> list[tuple[float, float]]:
    """The two p of each claim of a family, doubled and adjusted: the smaller ones together, the larger ones together.

    None, for a claim that allows no test, counts as 1. The larger p of a claim is not adjusted beside the smaller ones
    of others: wherever a claim or its opposite is true that one is tiny, and would take nothing of the 0.05.
    """
    pairs = [each or (1.0, 1.0) for each in sides]
    smaller, larger = (holm([2 * chosen(pair) for pair in pairs]) for chosen in (min, max))
    return [
        (small, large) if inside < outside else (large, small)
        for (inside, outside), small, large in zip(pairs, smaller, larger, strict=True)
    ]


def holm(p: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm's method, in their order: the largest of (m - j + 1)·p_(j) up to each, at most 1."""
    order = np.argsort(p, kind="stable")
    falling = np.maximum.accumulate(np.minimum(1.0, np.arange(len(p), 0, -1) * np.array(p)[order]))
    return [float(each) for each in falling[np.argsort(order)]]


def certainties(values: Sequence[float], region: tuple[float, float], margin: float) -> tuple[float, float]:
    """0 where all values are in the region, else 1; and 0 where all are outside, or inside by less than the margin."""
    low, high = region
    inside = all(low < value < high for value in values)
    outside = all(value < low + margin or value > high - margin for value in values)
    return float(not inside), float(not outside)
