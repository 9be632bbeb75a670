"""The pairing experiment: from made-up files with known effects to verdicts, and the variance that is measured."""

import itertools
import math

import pytest
import torch

from experiments.studies.features.kernel_errors import DIRECTIONS
from experiments.studies.pairing import measure
from experiments.studies.pairing.measure import (
    DISTANCES,
    EQUAL_DRAWS,
    MAPS,
    PAIRED,
    PLAIN,
    expected_variance,
    relative_scores,
    rotated_score_table,
)
from experiments.studies.registry import STUDIES
from linear_rope import FavorPlus
from linear_rope.features import Features
from linear_rope.positions.rotary import rope_frequencies

from .conftest import drawn, judged, opened, write

STUDY = STUDIES["pairing"]

NOISE = (0.0, 0.001, -0.001)
SQUARED_ERROR = {PLAIN: 1, EQUAL_DRAWS: 2, PAIRED: 10}


@pytest.fixture
def made_up(make_comparison, tmp_path):
    """Makes a comparison in which pairing features is better (sign -1) or worse (sign 1)."""

    def make(sign):
        def loss(name, seed, step):
            better = 0.01 * int(name.partition("=")[2] or 60)
            return 9 + seed - better + (sign * (4 + better + NOISE[seed]) if "+paired-" in name else 0)

        root = make_comparison(tmp_path, ",".join(STUDY.variants), 3, loss=loss)
        rows = []
        for name, directions, distance in itertools.product(SQUARED_ERROR, DIRECTIONS, (8, 64, 512)):
            error = SQUARED_ERROR[name] ** sign * distance if directions == "orthogonal" else 1
            place = (name, directions, 64, 0.5, distance)
            rows += [(*place, draw, (1 + draw / 100) * error, 1.0) for draw in range(measure.VARIANCE_DRAWS)]
        write(measure.VARIANCE, root, rows)
        return opened(root)

    return make


@pytest.mark.parametrize(("sign", "verdict"), [(-1, "supported"), (1, "not supported")])
def test_every_claim_reads_the_variants_that_it_names_and_verdicts_follow(made_up, sign, verdict):
    rows = judged(STUDY, *made_up(sign))
    expected = {}
    for distance in (8, 64, 512):
        expected[f"variance-equal-M-{distance}"] = 10.0**sign - 1
        expected[f"variance-equal-draws-{distance}"] = 5.0**sign - 1
    for num_features in (32, 64, 128, 256):
        expected[f"loss-{num_features}"] = sign * (4 + num_features / 100)
    for num_features in (64, 128, 256):
        # Of half as many features the plain map's loss is higher, by 0.01 a feature.
        expected[f"loss-equal-draws-{num_features}"] = sign * (4 + num_features / 100) - num_features / 200
    expected["loss-elu+1"] = sign * 4.6
    assert {key: row.estimate.mean for key, row in rows.items()} == pytest.approx(expected)
    assert {row.verdict for row in rows.values()} == {verdict}


def test_figures_are_drawn(made_up, tmp_path):
    assert drawn(STUDY, tmp_path / "made", *made_up(-1))[1] == {"final-loss", "validation", "variance"}


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
