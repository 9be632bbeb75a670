"""The test of paired differences, beside SciPy's."""

import math

import numpy as np
import pytest
from scipy import stats

from experiments.judge.difference import paired_test, verdict

MARGIN = 0.02


def around(mean, std, n=5):
    """n values of exactly this mean and standard deviation."""
    values = np.linspace(-1, 1, n)
    return list(mean + std * values / np.std(values, ddof=1))


def said(values, margin=MARGIN, resolution=0.0):
    return verdict(paired_test(values, margin, resolution), "a", "b", margin, "lower")


@pytest.mark.parametrize("values", [around(0.03, 0.01), around(-0.004, 0.006), around(0.0, 0.05, 3), around(-0.3, 0.1)])
def test_interval_and_p_are_those_of_scipys_tests(values):
    found, different, equivalent = paired_test(values, MARGIN)
    wanted = stats.ttest_1samp(values, 0)
    assert different == pytest.approx(wanted.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx(tuple(wanted.confidence_interval(0.95)), rel=1e-9)
    sides = [(-MARGIN, "greater"), (MARGIN, "less")]
    one_sided = [stats.ttest_1samp(values, bound, alternative=side).pvalue for bound, side in sides]
    assert equivalent == pytest.approx(max(one_sided), rel=1e-9)


# Five values of standard deviation 0.01 have a 95 % interval of ±2.7764·0.01/√5 = ±0.01242 and a 90 % one of
# ±2.1318·0.01/√5 = ±0.00953. So zero is left out from a mean of 0.01242 on, and the margin is kept up to one of
# 0.02 - 0.00953 = 0.01047. Where both are shown the difference is what is said: ±2.7764·0.002/√5 = ±0.0025.
@pytest.mark.parametrize(
    ("values", "words"),
    [
        (around(0.0125, 0.01), "b lower by 0.0125 [0.0001, 0.0249]"),
        (around(-0.0125, 0.01), "a lower by 0.0125 [0.0001, 0.0249]"),
        (around(0.0123, 0.01), "undecided [-0.0001, +0.0247]"),
        (around(0.0106, 0.01), "undecided [-0.0018, +0.0230]"),
        (around(0.0103, 0.01), "no difference beyond 0.02"),
        (around(-0.0103, 0.01), "no difference beyond 0.02"),
        (around(-0.008, 0.002), "a lower by 0.0080 [0.0055, 0.0105]"),
        ([], "undecided: n = 0, and 3 are needed"),
        ([0.5, 0.6], "undecided: n = 2, and 3 are needed"),
        ([0.5, 0.5, 0.5], "undecided: all differences are equal"),
    ],
)
def test_each_verdict_begins_where_its_interval_does(values, words):
    assert said(values) == words


def test_equal_differences_are_judged_by_what_a_value_resolves():
    """Here it is 0.01, and ±4.3027·0.01/√3 = ±0.0248 for 95 %."""
    assert said([0.0] * 3, 0.05, resolution=0.01) == "no difference beyond 0.05"
    assert paired_test([0.0] * 3, 0.05, resolution=0.01)[0].high == pytest.approx(0.02484, abs=1e-5)
    assert math.isnan(paired_test([0.5] * 3, MARGIN)[0].low)
