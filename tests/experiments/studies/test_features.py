"""The features experiment: errors of estimates against theory, the figures, and what claims read of made-up files."""

import math

import numpy as np
import pytest
import torch

from experiments.studies.features.kernel_errors import ESTIMATORS, errors, expected_kernel_error, scores
from experiments.studies.features.measure import (
    NUM_FEATURES,
    TRAINED_DRAWS,
    Grid,
    feature_seed,
    queries_and_keys,
    random_table,
    trained_table,
)
from linear_rope.model import CausalLM
from linear_rope.model_config import ModelConfig

pytestmark = pytest.mark.usefixtures("one_thread")


def normal(*shape, scale=0.25, seed=0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_measured_error_of_independent_draws_is_the_analytic_one(estimator):
    """300 draws: the mean lies within 4 standard errors, exceeded by chance once in 10,000, and the draws are fixed."""
    q, k = normal(2, 16, 8)
    expected = expected_kernel_error(estimator, q, k, 32).item()
    draws = [errors(q, k, k, ESTIMATORS[estimator](8, 32, "independent", seed)).kernel.item() for seed in range(300)]
    standard_error = np.std(draws, ddof=1) / math.sqrt(300)
    assert abs(np.mean(draws) - expected) < 4 * standard_error
    # It would notice a factor of two, such as draws counted for features.
    assert standard_error < expected / 16


def test_the_analytic_error_is_that_of_the_paper():
    """Choromanski et al. 2020, lemma 2, for one pair, as printed: m draws, SM the kernel."""
    q, k = normal(2, 1, 8)
    kernel, m = scores(q, k).exp().item(), 16
    plus = ((q + k).square().sum() / math.sqrt(8)).item()
    minus = ((q - k).square().sum() / math.sqrt(8)).item()
    positive = math.exp(plus) * kernel**2 * (1 - math.exp(-plus)) / m
    hyperbolic = (1 - math.exp(-plus)) * positive / 2
    trigonometric = math.exp(plus) * kernel**-2 * (1 - math.exp(-minus)) ** 2 / (2 * m)
    for name, printed, count in (
        ("positive", positive, m),
        ("hyperbolic", hyperbolic, 2 * m),
        ("trigonometric", trigonometric, 2 * m),
    ):
        assert expected_kernel_error(name, q, k, count).item() == pytest.approx(printed / kernel**2, rel=1e-12)


def test_errors_vanish_for_a_perfect_estimate_and_do_not_overflow():
    q, k = normal(2, 2, 16, 8)
    perfect = errors(torch.zeros_like(q), k * 0, k, ESTIMATORS["positive"](8, 4, "independent", 0))
    assert max(value.abs().max().item() for value in perfect) < 1e-24
    large = errors(60 * q, 60 * k, k, ESTIMATORS["positive"](8, 64, "orthogonal", 0))
    assert all(value.isfinite().all() for value in (large.attention, large.output))


def test_a_draw_has_equal_inputs_for_all_and_its_own_features():
    table = random_table("curves", Grid((8,), (0.5,), (16, 32), ("independent",), ("positive",), length=8), draws=2)
    expected = table.pivot(index="draw", columns="num_features", values="expected_kernel_error")
    assert expected[16].tolist() == pytest.approx((2 * expected[32]).tolist(), rel=1e-12)
    assert expected[16][0] != expected[16][1]
    assert len({feature_seed(m, draw) for m in NUM_FEATURES for draw in range(100)} | set(range(100))) == 800


def test_queries_and_keys_are_those_the_attention_makes():
    sizes = {"vocab_size": 11, "dim": 8, "layers": 2, "heads": 2, "max_length": 5}
    model = CausalLM(ModelConfig(**sizes, position="none", qk_norm=True)).eval()
    tokens = torch.arange(10).reshape(2, 5) % 11
    layers = queries_and_keys(model, tokens)
    assert [tuple(q.shape) for q, _ in layers] == [(2, 10, 4)] * 2
    attention = next(module for module in model.modules() if hasattr(module, "attention_weights"))
    seen = []
    hook = attention.register_forward_hook(lambda module, arguments, output: seen.append(arguments[0]))
    model(tokens)
    hook.remove()
    # Head 1 of token 3 of sequence 1.
    key = attention.key(seen[0])[1, 3, 4:]
    torch.testing.assert_close(layers[0][1][1, 8], 0.35 * key / (key.square().mean() + 1e-6).sqrt())


def test_trained_inputs_that_no_float_can_hold_are_refused_and_large_ones_are_not():
    q, k = normal(2, 2, 8, 4)
    table = trained_table(40 * q, 40 * k)
    assert np.isfinite(table.select_dtypes("number")).all(axis=None)
    assert table["input_scale"].iloc[0] == pytest.approx(10, rel=0.3)
    assert trained_table(q * torch.inf, k) is None


def test_a_run_has_draws_of_its_own():
    q, k = normal(2, 2, 8, 4)
    first, second = (trained_table(q, k, draw)["log10_kernel_error"] for draw in (0, TRAINED_DRAWS))
    assert (first != second).all()
