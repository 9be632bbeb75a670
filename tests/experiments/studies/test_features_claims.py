import msgspec
import pandas as pd
import pytest

from experiments.analysis.claims import claims_of
from experiments.analysis.runs import Runs
from experiments.records.files import write_json
from experiments.studies.features.kernel_errors import DIRECTIONS, ESTIMATORS
from experiments.studies.features.measure import DRAWS, FEW_DRAWS, NUM_FEATURES, RANDOM, SCALES, TRAINED
from experiments.studies.registry import STUDIES
from tests.made_up import make_record

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


def random_errors(part, head_dim, scales, counts, draws):
    """Errors that fall as 1/M; hyperbolic ones a tenth of positive ones, trigonometric ones better at scale 0.5."""
    factor = {"positive": 1.0, "hyperbolic": 0.1, "trigonometric": 0.01}
    rows = []
    for scale in scales:
        for estimator in ESTIMATORS:
            for directions in DIRECTIONS:
                for m in counts:
                    worse = 1e6 if estimator == "trigonometric" and scale == 1 else 1
                    error = factor[estimator] * worse * (1 if directions == "orthogonal" else 2) / m
                    place = (part, 256, head_dim, scale, estimator, directions, m)
                    rows += [(*place, draw, error * (1 + draw / 10), error, error, error) for draw in range(draws)]
    return pd.DataFrame(rows, columns=RANDOM.columns)


@pytest.fixture
def root(tmp_path):
    parts = [
        random_errors("curves", 16, SCALES, NUM_FEATURES, DRAWS),
        random_errors("figure 4", 16, (0.5, 1.0), (256,), DRAWS),
        random_errors("few features", 16, (0.25, 0.5), (16,), FEW_DRAWS),
    ]
    pd.concat(parts).to_csv(tmp_path / "random.csv", index=False)
    rows = [
        (name, seed, layer, estimator, directions, 64, -1.0, -1.0 - 0.1 * layer * (estimator == "hyperbolic"), 0.3)
        for name in VARIANTS
        for seed in (0, 1, 2)
        for layer in (0, 1)
        for estimator in ESTIMATORS
        for directions in DIRECTIONS
    ]
    pd.DataFrame(rows, columns=TRAINED.columns).to_csv(tmp_path / "trained.csv", index=False)
    for name in VARIANTS:
        for seed, state, reason in ((0, "done", None), (1, "done", None), (2, "failed", "why")):
            (tmp_path / name / f"seed{seed}").mkdir(parents=True)
            status = {"state": state, "reason": reason, "step": 1}
            write_json(tmp_path / name / f"seed{seed}" / "status.json", status)
    return tmp_path


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
    sample = SAMPLES[key](root, PLANNED, Runs(root, PLANNED, CURVES))
    assert (sample.planned, sample.unit_of_sample) == (count, "draws")
    assert list(sample.values.values()) == pytest.approx([value] * count, abs=1e-5)


def test_the_difference_of_mean_squared_errors_is_over_what_is_expected_of_independent_directions(root):
    sample = SAMPLES["orthogonal-mean-0.25"](root, PLANNED, Runs(root, PLANNED, CURVES))
    assert (sample.planned, sample.unit_of_sample) == (FEW_DRAWS, "draws")
    # Errors of 1 and 2, where 2 are expected, and a draw's own factor.
    assert sample.values == pytest.approx({draw: -0.5 * (1 + draw / 10) for draw in range(FEW_DRAWS)})


def test_a_claim_on_trained_models_has_a_value_a_seed_and_tells_of_the_failed_one(root):
    sample = SAMPLES["hyperbolic-on-favor+-none"](root, PLANNED, Runs(root, PLANNED, CURVES))
    assert sample.values == pytest.approx({0: -0.05, 1: -0.05})
    assert (sample.planned, sample.lost) == (3, ("seed 2: favor+-none failed: why",))
    other = msgspec.structs.replace(PLANNED, variants=PLANNED.variants[:1])
    assert SAMPLES["hyperbolic-on-favor+-none"](root, other, Runs(root, other, CURVES)) is None


def test_a_missing_file_or_draw_is_no_sample_or_an_unfinished_one(root):
    table = RANDOM.read(root)
    table[table["draw"] != 3].to_csv(root / "random.csv", index=False)
    assert SAMPLES["hyperbolic-1"](root, PLANNED, Runs(root, PLANNED, CURVES)).unfinished == 1
    (root / "random.csv").unlink()
    (root / "trained.csv").unlink()
    assert SAMPLES["hyperbolic-1"](root, PLANNED, Runs(root, PLANNED, CURVES)) is None
    assert SAMPLES["one-over-m"](root, PLANNED, Runs(root, PLANNED, CURVES)) is None
    assert SAMPLES["positive-on-favor+-none"](root, PLANNED, Runs(root, PLANNED, CURVES)).unfinished == 2
