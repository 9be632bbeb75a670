"""The denominator experiment: eq. 19 before training, and verdicts from made-up files with known effects."""

import pandas as pd
import pytest

from experiments.show.rows import read_rows
from experiments.studies.denominator import measure as denominator
from experiments.studies.denominator.measure import KERNELS
from experiments.studies.registry import STUDIES
from experiments.train.steps import DIVERGED

STUDY = STUDIES["denominator"]

NOISE = (0.0, 0.001, -0.001, 0.0005, -0.0005)
FEW, MANY = len(NOISE), 10
"""seeds: 10 that fail have a p of 2 / 2^10 in the sign test, and times 12 claims of the family that is 0.02"""


@pytest.fixture(scope="module")
def initial():
    return denominator.initial_table(draws=2).set_index("feature_map")


def test_the_expected_values_are_found_within_what_draws_differ_by(initial):
    # 29.8 % with a standard deviation over draws of 0.8 percentage points, 3.4 % with 0.1: four of them, as in
    # test_diagnostics.py. 112 of 1024 denominators and the extremes are of one draw, and only their order is asked.
    without_mask = initial[initial["sees"] == denominator.ALL_KEYS]
    favor, elu = without_mask.loc["favor+"], without_mask.loc["elu+1"]
    assert favor["negative_weights"].to_list() == pytest.approx([0.298] * 2, abs=0.032)
    assert elu["negative_weights"].to_list() == pytest.approx([0.034] * 2, abs=0.004)
    assert elu["smallest_row_sum"].to_list() == pytest.approx([0.15] * 2, abs=0.032)
    assert favor["rotated_denominators_not_above_zero"].between(40, 250).all()
    assert (elu["rotated_denominators_not_above_zero"] == 0).all()
    assert (favor["smallest_row_sum"] < 0).all()
    # The first query sees itself alone, and its row sum is 1.
    causal = initial[initial["sees"] == denominator.CAUSAL]
    assert (causal["largest_row_sum"] >= 1 - 1e-9).all()
    assert causal["draw"].tolist() == [0, 0, 1, 1]
    assert initial["negative_weights"].nunique() == 8


@pytest.fixture
def fails(make_comparison, tmp_path):
    """The row of the claim that a rotated denominator makes training fail, of five seeds, for these fates of runs."""

    def row(fates):
        root = make_comparison(tmp_path, ",".join(STUDY.variants), 5, fates=fates)
        return read_rows(root, STUDY).claims["fails"]

    return row


@pytest.mark.parametrize(("count", "verdict"), [(6, "supported"), (5, "inconclusive")])
def test_failures_of_all_kernels_count_together(fails, count, verdict):
    variants = [f"{kernel}-rope-after@denominator=rotated" for kernel in KERNELS]
    runs = [(variant, seed) for seed in (0, 1) for variant in variants]
    fates = {run: ("failed", f"{DIVERGED}: the loss is nan at step 41") for run in runs[:count]}
    assert fails(fates).verdict == verdict


def test_a_failure_of_another_kind_is_lost(fails):
    row = fails({("relu-rope-after", 1): ("failed", "killed")})
    said = "1 of 15 pairs of runs have no value: relu-rope-after@denominator=rotated, seed 1 failed: killed"
    assert (row.verdict, row.remark) == ("inconclusive", said)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([2.0], 0.0),
        ([2 + denominator.HEIGHT], 1.0),
        ([2.49], 0.0),
        ([1.0], 0.0),
        ([4.0, 2.0, 2.0, 2.0], 0.25),
        # The mean before the second is 2.2, before the third 2.25.
        ([4.0, 2.5, 2.8], 2 / 3),
    ],
)
def test_the_share_of_records_half_a_bit_above_the_mean_of_the_ten_before(after, expected):
    losses = pd.Series([2.0] * denominator.BEFORE + after)
    assert denominator.spike_share(losses) == pytest.approx(expected)
