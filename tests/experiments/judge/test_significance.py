"""p-values by hand and by SciPy, and how often they are wrong."""

import math

import numpy as np
import pytest
from scipy import stats

from experiments.judge.significance import adjust, holm, p_values
from experiments.judge.statistics import pooled_spread


def test_holm_on_a_hand_worked_example():
    # In order: 4·0.005 = 0.02, 3·0.01 = 0.03, 2·0.03 = 0.06, then 1·0.04 < 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_p_values_are_those_of_the_tests_that_the_rule_names():
    values = [0.7, 0.1, 0.6, 0.2, 0.5]

    def p(bound, alternative):
        return stats.ttest_1samp(values, bound, alternative=alternative).pvalue

    assert p_values(values, (0.0, math.inf), 0.1) == pytest.approx((p(0, "greater"), p(0.1, "less")))
    assert p_values(values, (-math.inf, 1.0), 0.1) == pytest.approx((p(1, "less"), p(0.9, "greater")))
    both = (max(p(0.4, "greater"), p(1, "less")), 2 * min(p(0.5, "less"), p(0.9, "greater")))
    assert max(both) < 1
    assert p_values(values, (0.4, 1.0), 0.1) == pytest.approx(both)


def test_three_seeds_that_agree_make_no_false_verdict_where_all_variants_are_all_or_nothing():
    # Eight variants that solve a task in four of five runs: the mean is 0.8, so a verdict that it is above 0.95 is
    # false.
    solved = (np.random.default_rng(0).random((400, 8, 3)) < 0.8).astype(float)

    def false_verdicts(pooled):
        region, margin, resolution = (0.95, math.inf), 0.01, 1e-4
        p = [p_values(runs[0], region, margin, resolution, pooled(runs))[0] for runs in solved]
        return sum(2 * each < 0.05 for each in p) / len(p)

    assert false_verdicts(lambda runs: None) > 0.4  # three of three: 0.8³
    assert false_verdicts(pooled_spread) < 0.05


def test_the_larger_p_of_a_claim_is_adjusted_with_those_of_the_others():
    # Smaller: 0.001, 0.002 and none; larger: 0.9, 0.01 and none. Doubled, times 3, 2 and 1.
    adjusted = adjust([(0.001, 0.9), (0.01, 0.002), None])
    assert adjusted == [pytest.approx((0.006, 1)), pytest.approx((0.06, 0.008)), (1, 1)]
