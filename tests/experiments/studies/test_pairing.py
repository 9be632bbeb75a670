"""The pairing experiment: from made-up files with known effects to verdicts, and the variance that is measured."""

import math

import pytest
import torch

from experiments.studies.pairing.measure import (
    DISTANCES,
    MAPS,
    expected_variance,
    relative_scores,
    rotated_score_table,
)
from linear_rope import FavorPlus
from linear_rope.features import Features
from linear_rope.positions.rotary import rope_frequencies


@pytest.fixture(scope="module")
def table():
    return rotated_score_table(8, (16,), (0.25, 0.35), pairs=32, draws=400)


@pytest.mark.slow
@pytest.mark.full
def test_the_measured_variance_of_independent_draws_is_the_analytic_one(table):
    groups = table.groupby(["scale", "map", "distance"])
    assert len(groups) == 2 * len(MAPS) * len(DISTANCES)
    for _, group in groups:
        standard_error = group["squared_error"].std() / math.sqrt(len(group))
        # 30 comparisons: 4 standard errors are exceeded by chance once in 500 runs, and the draws are fixed.
        assert abs(group["squared_error"].mean() - group["expected"].mean()) < 4 * standard_error


def test_the_score_of_paired_features_is_a_sum_of_cosines():
    q, k = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 2
    feature_map = FavorPlus(8, 6, eps=0.0)
    single = feature_map(q) * feature_map(k) * 6  # without the 1/√M of each
    mapped = [
        Features(f.values.repeat_interleave(2, -1), f.log_scale - math.log(2) / 2)
        for f in map(feature_map.features, (q, k))
    ]
    angles = torch.tensor(DISTANCES, dtype=torch.float64).unsqueeze(-1) * rope_frequencies(12)
    expected = (single.unsqueeze(-2) * 2 * angles.cos()).sum(-1) / 12
    exact = ((q * k).sum(-1, keepdim=True) / math.sqrt(8)).exp()
    # The rotation's own angles are exact to 1e-14; sums of six terms.
    torch.testing.assert_close(relative_scores(q, k, *mapped) * exact, expected, rtol=1e-10, atol=1e-12)


def test_pairing_lowers_the_variance_of_unlike_queries_and_keys_only():
    """Where all frequencies have turned and |x − y| > |x + y|; never at distance 0."""
    q = torch.ones(1, 8, dtype=torch.float64)
    alike, unlike = (
        (expected_variance(q, k, 64, paired=True) / expected_variance(q, k, 64, paired=False)) for k in (q, -q / 2)
    )
    assert (alike > 1).all()
    assert unlike[0, 0] > 1
    assert unlike[0, DISTANCES.index(512)] < 1
