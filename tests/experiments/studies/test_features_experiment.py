import math

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.figures import style as plots
from experiments.studies.features.figures import figures
from experiments.studies.features.kernel_errors import (
    DIRECTIONS,
    ESTIMATORS,
    errors,
    expected_kernel_error,
    scores,
    trigonometric,
)
from experiments.studies.features.measure import (
    NUM_FEATURES,
    RANDOM,
    TRAINED,
    TRAINED_DRAWS,
    feature_seed,
    queries_and_keys,
    random_table,
    trained_table,
)
from linear_rope.model import CausalLM, ModelConfig
from tests.made_up import make_record

pytestmark = pytest.mark.usefixtures("one_thread")


def normal(*shape, scale=0.25, seed=0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def log_means(table, **wanted):
    """Mean log10 of the three errors over the draws of the rows with these values."""
    for column, value in wanted.items():
        table = table[table[column] == value]
    assert len(table)
    return np.log10(table[["kernel_error", "attention_error", "output_error"]]).mean()


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


@pytest.mark.parametrize("directions", DIRECTIONS)
def test_the_trigonometric_estimate_is_unbiased(directions):
    q, k = normal(2, 4, 8, scale=0.5)
    estimates = []
    for seed in range(500):
        mapping = trigonometric(8, 4, directions, seed)
        (q_values, q_scale), (k_values, k_scale) = mapping(q), mapping(k)
        estimates.append((q_values @ k_values.mT) * (q_scale + k_scale.mT).exp())
    stacked = torch.stack(estimates)
    standard_error = stacked.std(0) / math.sqrt(len(estimates))
    # 16 values: 4.5 standard errors are exceeded by chance once in 9,000 runs, and the draws are fixed.
    assert ((stacked.mean(0) - scores(q, k).exp()).abs() < 4.5 * standard_error).all()
    assert (standard_error < 0.2 * scores(q, k).exp()).all()
    assert stacked.min() < 0


def test_errors_vanish_for_a_perfect_estimate_and_do_not_overflow():
    q, k = normal(2, 2, 16, 8)
    perfect = errors(torch.zeros_like(q), k * 0, k, ESTIMATORS["positive"](8, 4, "independent", 0))
    assert max(value.abs().max().item() for value in perfect) < 1e-24
    large = errors(60 * q, 60 * k, k, ESTIMATORS["positive"](8, 64, "orthogonal", 0))
    assert all(value.isfinite().all() for value in (large.attention, large.output))


def test_the_known_order_of_the_estimators():
    table = random_table("curves", (16,), (0.25, 1.0), (256,), ("orthogonal",), length=64, draws=5)
    small = {name: log_means(table, scale=0.25, estimator=name) for name in ESTIMATORS}
    large = {name: log_means(table, scale=1.0, estimator=name) for name in ESTIMATORS}
    # At scale 0.25 theory has hyperbolic and trigonometric features 2.3 times better than positive ones (0.36 in
    # log10) already without orthogonal directions; at scale 1 the trigonometric ones are off by orders of magnitude.
    assert small["trigonometric"]["kernel_error"] < small["positive"]["kernel_error"] - 0.36
    assert small["hyperbolic"]["kernel_error"] < small["positive"]["kernel_error"] - 0.36
    assert small["trigonometric"]["output_error"] < small["positive"]["output_error"]
    assert large["trigonometric"]["output_error"] > large["positive"]["output_error"] + 1
    assert set(table.columns) == set(RANDOM.columns)


def test_a_draw_has_equal_inputs_for_all_and_its_own_features():
    table = random_table("curves", (8,), (0.5,), (16, 32), ("independent",), ("positive",), length=8, draws=2)
    expected = table.pivot(index="draw", columns="num_features", values="expected_kernel_error")
    assert expected[16].tolist() == pytest.approx((2 * expected[32]).tolist(), rel=1e-12)
    assert expected[16][0] != expected[16][1]
    assert len({feature_seed(m, draw) for m in NUM_FEATURES for draw in range(100)} | set(range(100))) == 800


def test_queries_and_keys_are_those_the_attention_makes():
    model = CausalLM(ModelConfig(vocab_size=11, dim=8, layers=2, heads=2, max_length=5, position="none")).eval()
    tokens = torch.arange(10).reshape(2, 5) % 11
    layers = queries_and_keys(model, tokens)
    assert [tuple(q.shape) for q, _ in layers] == [(2, 10, 4)] * 2
    attention = next(module for module in model.modules() if hasattr(module, "attention_weights"))
    seen = []
    hook = attention.register_forward_hook(lambda module, arguments, output: seen.append(arguments[0]))
    model(tokens)
    hook.remove()
    # Head 1 of token 3 of sequence 1.
    torch.testing.assert_close(layers[0][1][1, 8], attention.key(seen[0])[1, 3, 4:])


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


def made_up(root):
    """random.csv and trained.csv whose values are made up, but for their shape."""
    random = [
        (part, 8, 16, scale, estimator, directions, m, draw, 1 / m + draw / 100, 1 / m, 0.1 + draw / 10, 1 / m)
        for part in ("curves", "figure 4")
        for scale in (0.5, 1.0)
        for estimator in ESTIMATORS
        for directions in DIRECTIONS
        for m in (16, 64)
        for draw in range(3)
    ]
    trained = [
        (variant, seed, layer, estimator, directions, m, -1 - seed / 10, -0.5, 0.3)
        for variant in ("softmax-none", "favor+-none")
        for seed in range(3)
        for layer in range(2)
        for estimator in ESTIMATORS
        for directions in DIRECTIONS
        for m in (16, 64)
    ]
    pd.DataFrame(random, columns=RANDOM.columns).to_csv(root / "random.csv", index=False)
    pd.DataFrame(trained, columns=TRAINED.columns).to_csv(root / "trained.csv", index=False)
    return make_record(preset="smoke", variants=["softmax-none", "favor+-none"])


def test_figures_are_made_from_the_files_alone(tmp_path, monkeypatch):
    stems = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, directory, stem: stems.append(stem))
    comparison = made_up(tmp_path)
    entries = figures(tmp_path, tmp_path / "output", comparison, None, None)
    assert stems == ["kernel-error-16", "attention-error-16", "trained-error"]
    (table,) = (entry.table for entry in entries if isinstance(entry, plots.TableEntry))
    assert set(table["features"]) == set(ESTIMATORS)
    (tmp_path / "random.csv").unlink()
    (tmp_path / "trained.csv").unlink()
    assert figures(tmp_path, tmp_path / "output", comparison, None, None) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("random", "trigonometric", "cosine", "has the estimator 'cosine', expected one of positive, hyperbolic"),
        ("random", "independent", "some", "has the directions 'some', expected one of orthogonal, independent"),
        ("random", "curves", "curve", "has the part 'curve'"),
        ("random", ",16,0.5,", ",16,nan,", "column scale is 'nan', expected a number"),
        ("trained", "log10_kernel_error", "kernel_error", "has no column log10_kernel_error"),
    ],
)
def test_a_damaged_file_is_refused_before_a_figure_is_drawn(tmp_path, name, old, new, message):
    comparison = made_up(tmp_path)
    path = tmp_path / f"{name}.csv"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=rf"{name}\.csv.*{message}"):
        figures(tmp_path, tmp_path / "output", comparison, None, None)
    assert not (tmp_path / "output").exists()
