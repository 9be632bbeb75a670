"""Comparison.difference of made-up runs whose numbers are known."""

import math

import pytest

from experiments import load

A, B = "elu+1-rope-after", "softmax-rope"
# At five seeds these differ by ±0.01 from their mean, and their standard deviation is 0.01: a 95 % interval is
# ±2.7764·0.01/√5 = ±0.0124, a 90 % one ±0.0095.
SPREAD = [0.01, -0.01, 0.01, -0.01, 0.0]
ACCURACY = {"name": "labels", "metric": "accuracy", "unit": "accuracy", "better": "higher", "vocabulary": 256}


@pytest.fixture
def compared(make_comparison, tmp_path):
    """Makes a comparison in which A is this much above B at each seed, and B at each seed 1 above the one before."""

    def make(differences, **other):
        def value(name, seed, step):
            return seed + (differences[seed] if name == A else 0)

        return load(make_comparison(tmp_path / "made", f"{A},{B}", len(differences), loss=value, **other))

    return make


@pytest.mark.parametrize(
    ("mean", "better", "verdict", "swapped"),
    [
        (-0.1, "lower", f"{A} lower by 0.1000 [0.0876, 0.1124]", f"{A} lower by 0.1000 [0.0876, 0.1124]"),
        (0.1, "lower", f"{B} lower by 0.1000 [0.0876, 0.1124]", f"{B} lower by 0.1000 [0.0876, 0.1124]"),
        (0.001, "lower", "no difference beyond 0.02", "no difference beyond 0.02"),
        (0.0115, "lower", "undecided [-0.0009, +0.0239]", "undecided [-0.0239, +0.0009]"),
        (0.1, "higher", f"{A} higher by 0.1000 [0.0876, 0.1124]", f"{A} higher by 0.1000 [0.0876, 0.1124]"),
        (0.0115, "higher", "no difference beyond 0.05", "no difference beyond 0.05"),
    ],
)
def test_the_four_verdicts(compared, mean, better, verdict, swapped):
    comparison = compared([mean + each for each in SPREAD], **({"objective": ACCURACY} if better == "higher" else {}))
    found = comparison.difference(A, B)
    assert found.verdict == verdict
    assert comparison.difference(B, A).verdict == swapped
    assert (found.a, found.b, found.n) == (A, B, 5)
    assert (found.metric, found.margin) == (("bits_per_byte", 0.02) if better == "lower" else ("accuracy", 0.05))
    assert (found.mean, found.low, found.high) == pytest.approx((mean, mean - 0.012417, mean + 0.012417), abs=1e-6)
    assert str(found).endswith(f"; {verdict}")
    assert "\n" not in str(found)


def test_it_is_the_difference_that_the_summary_has(compared):
    comparison = compared([0.1, 0.12, 0.13, 0.09])
    comparison.record.baseline = B
    rows = comparison.summary.set_index(["variant", "metric"])
    row = rows.loc[A, "test_bits_per_byte_minus_baseline"]
    found = comparison.difference(A, B)
    assert (found.n, found.mean, found.low, found.high) == (row["n"], row["mean"], row["low"], row["high"])


def test_a_margin_of_ones_own_counts(compared):
    comparison = compared([0.001 + each for each in SPREAD])
    assert comparison.difference(A, B, margin=0.005).verdict == "undecided [-0.0114, +0.0134]"
    assert comparison.difference(A, B, metric="bits_per_byte", margin=0.5).verdict == "no difference beyond 0.5"


def test_only_seeds_that_both_have_finished_are_paired(compared):
    # A lacks the seed 0, B the seed 1: unpaired, means would differ by more than a whole seed.
    fates = {(A, 0): ("failed", "why"), (B, 1): ("running", None)}
    found = compared([5.0, 5.0, 0.1, 0.11, 0.09], fates=fates).difference(A, B)
    assert (found.n, found.mean) == (3, pytest.approx(0.1))
    assert found.verdict == f"{B} lower by 0.1000 [0.0752, 0.1248]"  # ±4.3027·0.01/√3 = ±0.0248


@pytest.mark.parametrize(
    ("states", "n", "mean"),
    [
        ({}, 2, "+0.1500; "),
        ({(A, 0): ("failed", "why")}, 1, "+0.2000; "),
        ({(A, 0): ("failed", ""), (B, 1): ("failed", "")}, 0, ""),
    ],
)
def test_below_three_seeds_there_is_no_interval(compared, states, n, mean):
    found = compared([0.1, 0.2], fates=states).difference(A, B)
    assert found.n == n
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert found.verdict == f"undecided: n = {n}, and 3 are needed"
    assert str(found) == f"{A} - {B}, test bits per byte, n = {n}: {mean}undecided: n = {n}, and 3 are needed"


@pytest.mark.parametrize(
    ("arguments", "other", "said"),
    [
        ((A, "softmax-rop"), {}, "b is 'softmax-rop', which "),
        (("softmax", B), {}, "a is 'softmax', which "),
        ((A, A), {}, "a and b are both 'elu+1-rope-after'; give two variants"),
        ((A, B), {"metric": "acuracy"}, "metric is 'acuracy', which the test split does not have; choose from bits_p"),
        ((A, B), {"margin": 0}, "margin is 0; give a number above 0"),
        ((A, B), {"margin": math.nan}, "margin is nan; give a number above 0"),
    ],
)
def test_wrong_arguments_are_named(compared, arguments, other, said):
    with pytest.raises(ValueError, match=r".") as refusal:
        compared([0.1]).difference(*arguments, **other)
    assert said in str(refusal.value)
