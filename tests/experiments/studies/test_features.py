"""The features experiment: errors of estimates against theory, the figures, and what claims read of made-up files."""

import itertools
import math

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch

from experiments.judge.claims import claims_of
from experiments.judge.runs import Runs
from experiments.records.files import write_json
from experiments.studies.features.kernel_errors import DIRECTIONS, ESTIMATORS, errors, expected_kernel_error, scores
from experiments.studies.features.measure import (
    DRAWS,
    FEW_DRAWS,
    NUM_FEATURES,
    RANDOM,
    SCALES,
    TRAINED,
    TRAINED_DRAWS,
    Grid,
    feature_seed,
    queries_and_keys,
    random_table,
    trained_table,
)
from experiments.studies.features.rows import trained
from experiments.studies.registry import STUDIES
from linear_rope.model import CausalLM
from linear_rope.model_config import ModelConfig
from tests.made_up import make_record

from .conftest import write

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


SAMPLES = {claim.key: claim.sample for claim in claims_of(STUDIES["features"])}
VARIANTS = ("softmax-none", "favor+-none")
CURVES = pd.DataFrame(
    [
        (name, seed, split, step, "bits_per_byte", 3.0)
        for name in VARIANTS
        for seed in (0, 1)
        for split, step in (("validation", 0), ("train", 10), ("validation", 10), ("test", 10))
    ],
    columns=["variant", "seed", "split", "step", "metric", "value"],
)
STEPS = {"steps": 10, "log_every": 10, "evaluate_every": 10}
PLANNED = make_record(preset="cpu", variants=VARIANTS, seeds=[0, 1, 2], config={"layers": 2} | STEPS)


def random_errors(part, scales, counts, draws):
    """Errors that fall as 1/M; hyperbolic ones a tenth of positive ones, trigonometric ones better at scale 0.5."""
    factor = {"positive": 1.0, "hyperbolic": 0.1, "trigonometric": 0.01}
    for scale, estimator, directions, m in itertools.product(scales, ESTIMATORS, DIRECTIONS, counts):
        worse = 1e6 if estimator == "trigonometric" and scale == 1 else 1
        error = factor[estimator] * worse * (1 if directions == "orthogonal" else 2) / m
        for draw in range(draws):
            place = (part, 256, 16, scale, estimator, directions, m, draw)
            yield (*place, error * (1 + draw / 10), error, error, error)


@pytest.fixture
def root(tmp_path):
    """random.csv and trained.csv, and two runs a variant that finished and one that failed."""
    root = tmp_path / "features"
    for name, (seed, state) in itertools.product(VARIANTS, enumerate(("done", "done", "failed"))):
        (root / name / f"seed{seed}").mkdir(parents=True)
        status = {"state": state, "reason": "why" if state == "failed" else None, "step": 1}
        write_json(root / name / f"seed{seed}" / "status.json", status)
    random = [
        *random_errors("curves", SCALES, NUM_FEATURES, DRAWS),
        *random_errors("figure 4", (0.5, 1.0), (256,), DRAWS),
        *random_errors("few features", (0.25, 0.5), (16,), FEW_DRAWS),
    ]
    write(RANDOM, root, random)
    places = itertools.product(VARIANTS, range(3), range(2), ESTIMATORS, DIRECTIONS, (64,))
    write(TRAINED, root, [(*at, -1.0, -1.0 - 0.1 * at[2] * (at[3] == "hyperbolic"), 0.3) for at in places])
    return root


def sample(key, root, planned=PLANNED):
    return SAMPLES[key](root, planned, Runs(root, planned, CURVES))


@pytest.mark.parametrize(
    ("key", "value", "count"),
    [
        ("orthogonal-0.25", -0.30103, FEW_DRAWS),
        ("hyperbolic-1", -1, DRAWS),
        ("positive-1", -4, DRAWS),
        ("trigonometric-0.5", -2, DRAWS),
        ("one-over-m", -1, DRAWS),
    ],
)
def test_a_claim_reads_the_quantity_that_it_names(root, key, value, count):
    found = sample(key, root)
    assert (found.planned, found.unit_of_sample) == (count, "draws")
    assert list(found.values.values()) == pytest.approx([value] * count, abs=1e-5)


def test_the_difference_of_mean_squared_errors_is_over_what_is_expected_of_independent_directions(root):
    # Errors of 1 and 2, where 2 are expected, and a draw's own factor.
    expected = {draw: -0.5 * (1 + draw / 10) for draw in range(FEW_DRAWS)}
    assert sample("orthogonal-mean-0.25", root).values == pytest.approx(expected)


def test_a_claim_on_trained_models_has_a_value_a_seed_and_tells_of_the_failed_one(root):
    found = sample("hyperbolic-on-favor+-none", root)
    assert found.values == pytest.approx({0: -0.05, 1: -0.05})
    assert (found.planned, found.lost) == (3, ("seed 2: favor+-none failed: why",))
    other = msgspec.structs.replace(PLANNED, variants=PLANNED.variants[:1])
    assert sample("hyperbolic-on-favor+-none", root, other) is None


def test_a_missing_file_or_draw_is_no_sample_or_an_unfinished_one(root):
    table = RANDOM.read(root)
    RANDOM.write(root, table[table["draw"] != 3])
    assert sample("hyperbolic-1", root).unfinished == 1
    for table in (RANDOM, TRAINED):
        (root / f"{table.name}.csv").unlink()
    assert sample("hyperbolic-1", root) is None
    assert sample("one-over-m", root) is None
    assert sample("positive-on-favor+-none", root).unfinished == 2


def test_what_is_shown_is_made_from_the_files_alone(root):
    found = trained(root)
    assert set(found["title"]) == {"softmax-none, scale 0.30", "favor+-none, scale 0.30"}
    assert set(found["made"]) == {f"{one}, {other}" for one in ESTIMATORS for other in DIRECTIONS}
    # Means over layers of logarithms: -1 and, of hyperbolic features in layer 1, -1.1.
    hyperbolic = found.query("estimator == 'hyperbolic' and error == 'attention'")["value"]
    assert hyperbolic.tolist() == pytest.approx([10**-1.05] * len(hyperbolic))
    (root / "trained.csv").unlink()
    assert trained(root) is None


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
def test_a_damaged_file_is_refused(root, name, old, new, message):
    path = root / f"{name}.csv"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=rf"{name}\.csv.*{message}"):
        {"random": RANDOM, "trained": TRAINED}[name].read(root)
