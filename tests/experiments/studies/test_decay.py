import math

import numpy as np
import pytest
import torch

from experiments.config import Config
from experiments.data.corpus import corpus_of_text
from experiments.data.registry import load_data
from experiments.judge.statistics import estimates
from experiments.studies.decay import measure as decay
from experiments.studies.decay.measure import (
    EQUAL,
    EXPECTED_SIMILARITY,
    HEAD_DIM,
    MASK_FEATURES,
    expected,
    mask_draws_table,
    mask_table,
    scores_table,
)
from experiments.train.chosen_objective import make_objective
from experiments.train.position_loss import bins, by_bin, losses_by_position, overlapping
from tests.made_up import make_record


@pytest.fixture(scope="module")
def mask():
    return mask_table(mask_draws_table(draws=100, seed=1))


@pytest.fixture(scope="module")
def scores():
    return scores_table(draws=20, seed=1)


def test_the_mean_of_real_draws_is_the_expected_mask(mask):
    assert set(mask["num_features"]) == set(MASK_FEATURES)
    for row in mask.itertuples():
        standard_error = (row.high - row.low) / 2 / 1.984  # Student's t for 99 degrees of freedom
        # 36 comparisons: 4 standard errors are exceeded by chance once in 440 runs, and the draws are fixed.
        assert abs(row.mean - row.expected) < 4 * standard_error
        assert standard_error < 0.05


def test_scores_of_equal_content_average_to_c_and_rise_again(scores):
    means = estimates(scores, "distance", "equal")
    found = expected(None)
    found = found[found["key"] == EQUAL]
    shown = dict(zip(found["distance"], found["value"], strict=True))
    for distance, row in means.iterrows():
        exact = sum(math.cos(distance * 10000 ** (-2 * i / 64)) for i in range(32)) / 32
        assert shown[distance] == pytest.approx(exact, abs=1e-6)
        # 20 draws of 256 pairs: a weight |x_i|²/|x|² of mean 1/32 varies by 1/32, so a score by at most 32^-½.
        assert abs(row["mean"] - exact) < 4 * 32**-0.5 / math.sqrt(20 * 256)
    assert {distance: round(shown[distance], 3) for distance in EXPECTED_SIMILARITY} == EXPECTED_SIMILARITY
    assert means.loc[128, "high"] < means.loc[256, "low"]
    assert means.loc[512, "high"] < means.loc[1024, "low"]


def test_scores_of_independent_content_average_to_nothing_at_every_distance(scores):
    by_distance = scores.groupby("distance")["gaussian"]
    # A score has variance 1; the scores of a draw have one content at all distances.
    assert by_distance.mean().abs().max() < 4 / math.sqrt(20 * 256)
    assert by_distance.std().between(0.5 / 16, 2 / 16).all(), "1/16 over draws: a draw is the mean of 256 scores"


def test_the_bound_of_equation_37_is_worked_out_from_its_content(monkeypatch):
    """With the sums written out, for one pair a draw."""
    monkeypatch.setattr(decay, "SCORE_PAIRS", 1)
    draws = 20
    table = scores_table(draws, seed=3).pivot(index="draw", columns="distance", values="over_bound")
    generator = torch.Generator().manual_seed(3)
    angles = 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    for draw in range(draws):
        x, y = torch.randn(2, HEAD_DIM, generator=generator, dtype=torch.float64).numpy()
        h = (x[::2] + 1j * x[1::2]) * (y[::2] - 1j * y[1::2])
        steps = np.abs(np.diff(np.append(h, 0)))
        for distance in (0, 64, 1024):
            turns = np.exp(1j * distance * angles)
            expected = abs((h * turns).sum()) / (steps.max() * np.abs(np.cumsum(turns)).sum())
            assert table.loc[draw, distance] == pytest.approx(expected, rel=1e-9)
    assert table.max(axis=None) < 1


@pytest.mark.parametrize("context", [16, 31, 64])
def test_every_range_of_positions_counts_the_same_targets_equally_often(context):
    spans = torch.arange(2 * 501).view(2, 501)
    windows, counted = overlapping(spans, context)
    assert windows.shape[1] == context + 1
    assert counted.shape == (len(windows), context)
    assert (windows.diff() == 1).all()
    step = (windows[1, 0] - windows[0, 0]).item()
    targets = windows[:, 1:]
    all_counted = set(targets[counted].tolist())
    # All but what is too near to the ends of a span for every range to have it.
    assert len(all_counted) >= 2 * (500 - 2 * context - step)
    for first, last in bins(context):
        here = slice(first, last + 1)
        found, times = targets[:, here][counted[:, here]].unique(return_counts=True)
        assert set(found.tolist()) == all_counted
        assert set(times.tolist()) == {(last + 1 - first) // step}


@pytest.mark.parametrize(
    ("corpus", "context", "says"),
    [
        (load_data("recall-64"), 64, "recall-64 is not learnt as a text of bytes"),
        (corpus_of_text("text", bytes(range(250)) * 12, "made by the test", ""), 100, "text is too short"),
    ],
)
def test_what_has_no_loss_by_position_is_said_and_no_table_is_written(corpus, context, says, tmp_path):
    comparison = make_record(config={"context": context})
    (note,) = decay.measure_position_loss(
        tmp_path, comparison, make_objective(corpus, Config(context=context, batch_size=4))
    )
    assert says in note
    assert not list(tmp_path.iterdir())


def test_a_text_of_any_size_has_a_loss_by_position(tmp_path):
    # The test split of such a text is a byte longer than its validation split.
    corpus = corpus_of_text("text", bytes(i % 251 for i in range(110 * 100 + 1)), "made by the test", "")
    assert len(corpus.test) > len(corpus.validation)
    comparison = make_record(config={"context": 100}, seeds=[], machine={})
    assert (
        decay.measure_position_loss(tmp_path, comparison, make_objective(corpus, Config(context=100, batch_size=4)))
        == []
    )


class Counter(torch.nn.Module):
    """Predicts byte b with a logit that grows with the position."""

    def forward(self, tokens):
        logits = torch.zeros(*tokens.shape, 256)
        logits[..., 7] = torch.arange(tokens.shape[1], dtype=torch.float32)
        return logits


def test_the_loss_by_position_of_a_model_that_is_known():
    windows = torch.full((3, 41), 7)
    found = by_bin(losses_by_position(Counter(), windows, Config(context=40)))
    assert found[["first", "last"]].to_numpy().tolist() == [[0, 15], [16, 31], [32, 39]]
    for row in found.itertuples():
        exact = np.mean([math.log2(math.exp(p) + 255) - p / math.log(2) for p in range(row.first, row.last + 1)])
        # float32: 6e-8 of a logit of 40 and its logarithm, in bits
        assert row.bits_per_byte == pytest.approx(exact, abs=1e-5)
