import math

import numpy as np
import pytest
import torch

from experiments.figures.style import style
from experiments.studies.pairing.variance import (
    DISTANCES,
    EQUAL_DRAWS,
    MAPS,
    PAIRED,
    PLAIN,
    expected_variance,
    relative_scores,
    rotated_score_table,
    variance_figure,
)
from linear_rope import FavorPlus
from linear_rope.features import Features
from linear_rope.positions.rotary import rope_frequencies


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads that wait for each other make matrices as small as these many times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def table():
    return rotated_score_table(8, (16,), (0.25, 0.35), pairs=32, draws=400)


def test_the_measured_variance_of_independent_draws_is_the_analytic_one(table):
    groups = table.groupby(["scale", "map", "distance"])
    assert len(groups) == 2 * len(MAPS) * len(DISTANCES)
    for _, group in groups:
        standard_error = group["squared_error"].std() / math.sqrt(len(group))
        # 30 comparisons: 4 standard errors are exceeded by chance once in 500 runs, and the draws are fixed.
        assert abs(group["squared_error"].mean() - group["expected"].mean()) < 4 * standard_error


def test_the_test_above_tells_the_maps_apart(table):
    """At distance 0 pairing doubles the variance: far more than the measurement is uncertain by."""
    at_zero = table[(table["distance"] == 0) & (table["scale"] == 0.25)].groupby("map")
    error = at_zero["squared_error"].std() / math.sqrt(400)
    expected = at_zero["expected"].mean()
    assert expected[PAIRED] == pytest.approx(2 * expected[PLAIN])
    assert expected[PAIRED] == pytest.approx(expected[EQUAL_DRAWS])
    assert expected[PAIRED] - expected[PLAIN] > 6 * error.max()


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


def test_the_figure_has_every_map(table):
    with style():
        figure = variance_figure(table, 16)
        figure.draw_without_rendering()
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "independent directions, scale 0.25",
        "independent directions, scale 0.35",
    ]
    assert len(figure.legends[0].get_texts()) == len(MAPS) + 1
    drawn = np.concatenate([line.get_ydata() for axes in figure.axes for line in axes.get_lines()])
    assert (np.asarray(drawn, dtype=float) > 0).all()
