"""The test of paired differences, beside SciPy's."""

import math

import numpy as np
import pytest
from scipy import stats

from experiments.judge.difference import paired_test

MARGIN = 0.02


def around(mean, std, n=5):
    """n values of exactly this mean and standard deviation."""
    values = np.linspace(-1, 1, n)
    return list(mean + std * values / np.std(values, ddof=1))


@pytest.mark.parametrize("values", [around(0.03, 0.01), around(-0.004, 0.006), around(0.0, 0.05, 3), around(-0.3, 0.1)])
def test_interval_and_p_are_those_of_scipys_tests(values):
    found = paired_test(values, MARGIN)
    different = stats.ttest_1samp(values, 0)
    assert found.p_different == pytest.approx(different.pvalue, rel=1e-9)
    interval = different.confidence_interval(0.95)
    assert (found.estimate.low, found.estimate.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    sides = [(-MARGIN, "greater"), (MARGIN, "less")]
    one_sided = [stats.ttest_1samp(values, bound, alternative=side).pvalue for bound, side in sides]
    assert found.p_equivalent == pytest.approx(max(one_sided), rel=1e-9)


# Five values of standard deviation 0.01 have a 95 % interval of ±2.7764·0.01/√5 = ±0.01242 and a 90 % one of
# ±2.1318·0.01/√5 = ±0.00953. So zero is left out from a mean of 0.01242 on, and the margin is kept up to one of
# 0.02 - 0.00953 = 0.01047.
@pytest.mark.parametrize(
    ("mean", "outcome"),
    [
        (0.0125, "above"),
        (-0.0125, "below"),
        (0.0123, "undecided"),
        (0.0106, "undecided"),
        (0.0103, "equivalent"),
        (-0.0103, "equivalent"),
    ],
)
def test_each_outcome_begins_where_its_interval_does(mean, outcome):
    assert paired_test(around(mean, 0.01), MARGIN).outcome == outcome


def test_where_both_are_shown_the_difference_is_what_is_said():
    found = paired_test(around(-0.008, 0.002), MARGIN)
    assert max(found.p_different, found.p_equivalent) < 0.05
    assert found.outcome == "below"
    # ±2.7764·0.002/√5 = ±0.0025
    assert found.verdict("a", "b", MARGIN, "lower") == "a lower by 0.0080 [0.0055, 0.0105]"


@pytest.mark.parametrize(("values", "n"), [([], 0), ([0.5], 1), ([0.5, 0.6], 2), ([0.5, 0.5, 0.5], 3)])
def test_without_a_spread_there_is_no_interval_and_no_decision(values, n):
    found = paired_test(values, MARGIN)
    assert found.estimate.n == n
    assert math.isnan(found.estimate.low)
    assert found.outcome == "undecided"
    # Equal ones are judged by what a value resolves: here it is 0.01, and ±4.3027·0.01/√3 = ±0.0248 for 95 %.
    found = paired_test([0.0] * 3, 0.05, resolution=0.01)
    assert (found.outcome, found.estimate.high) == ("equivalent", pytest.approx(0.02484, abs=1e-5))
