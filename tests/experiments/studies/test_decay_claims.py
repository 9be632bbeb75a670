"""The claims about decay read the quantities that they name."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from experiments.analysis.claims import claims_of
from experiments.analysis.references import REFERENCES
from experiments.studies.decay.measure import (
    ATTENTION,
    BOUND_BY_WIDTH,
    BOUND_WIDTHS,
    DISTANCES,
    KEPT_DISTANCES,
    KEPT_MASK,
    MASK_DRAWS,
    POSITION_LOSS,
    SCORE_DRAWS,
    SCORES,
    bound_widths_table,
)
from experiments.studies.registry import STUDIES

from .conftest import judged, opened

STUDY = STUDIES["decay"]
VARIANTS = STUDY.variants
CONTEXT = 256
FALLS = {"favor+-rope-after": -2.0, "favor+-none": -0.5}
STEPS = {"softmax-none": -0.3}


@pytest.fixture
def root(tmp_path, make_comparison):
    """Made-up tables: equal content falls but for its rises, the rest is flat; weights fall by the variant."""
    root = tmp_path / "decay"
    make_comparison(root, ",".join(VARIANTS), 3, fates={("elu+1-none", 2): ("failed", "why")})
    BOUND_BY_WIDTH.write(root, bound_widths_table())
    equal = {1: 0.9, 128: 0.28, 256: 0.35, 512: 0.18, 1024: 0.26}
    scores = [
        (draw, distance, equal.get(distance, 0.5) + noise(draw), noise(draw) * (distance + 1) / 257, 0.1 + noise(draw))
        for draw in range(SCORE_DRAWS)
        for distance in DISTANCES
    ]
    SCORES.write(root, pd.DataFrame(scores, columns=["draw", "distance", "equal", "gaussian", "over_bound"]))
    draws = [(d, draw, 0.5, 0.5 + noise(draw)) for d in KEPT_DISTANCES for draw in range(MASK_DRAWS)]
    KEPT_MASK.write(root, pd.DataFrame(draws, columns=["distance", "draw", "expected", "ratio"]))
    runs = [(variant, seed) for variant in VARIANTS for seed in range(3) if (variant, seed) != ("elu+1-none", 2)]
    weights = [
        (variant, seed, layer, d, 0.0, 0.1 * math.exp(FALLS.get(variant, 0) + 0.01 * seed if d >= CONTEXT // 4 else 0))
        for variant, seed in runs
        for layer in (0, 1)
        for d in range(CONTEXT // 2)
    ]
    columns = ["variant", "seed", "layer", "distance", "signed", "absolute"]
    ATTENTION.write(root, pd.DataFrame(weights, columns=columns))
    edges = [(0, 15), (16, 31), (32, 63), (64, 127), (128, 255)]
    losses = []
    for (variant, seed), (first, last) in itertools.product(runs, edges):
        step = STEPS.get(variant, 0) + seed / 1000 if first == 128 else 0
        losses.append((variant, seed, first, last, 4 + (first == 0) + seed / 100 + step))
    POSITION_LOSS.write(root, pd.DataFrame(losses, columns=["variant", "seed", "first", "last", "bits_per_byte"]))
    return root


def noise(draw):
    return 0.01 * math.sin(draw)


def rows_of(root):
    root, comparison, curves = opened(root)
    comparison.config |= {"context": CONTEXT}
    return judged(STUDY, root, comparison, curves)


def test_every_claim_reads_the_quantity_that_it_names(root):
    rows = rows_of(root)
    average = np.mean([noise(draw) for draw in range(SCORE_DRAWS)])
    expected = {
        "bound-holds": 0.1 + average,
        "equal-falls": 0.35 - 0.9,
        "not-monotone-128": 0.35 - 0.28,
        "not-monotone-512": 0.26 - 0.18,
        "gaussian-flat": 256 / 257 * average,
        "mask-64": np.mean([noise(draw) for draw in range(MASK_DRAWS)]),
        "favor+-rope-after-attention": -2.0 + 0.01,
        "favor+-rope-after-steeper": -1.5,
        "softmax-rope-attention": 0.01,
        "softmax-none-position-loss": -0.3 + 0.001,
        "favor+-none-position-loss": 0.001,
    }
    for key, value in expected.items():
        assert rows[key].estimate.mean == pytest.approx(value, abs=1e-7), key  # the files have nine digits
    verdicts = {key: rows[key].verdict for key in expected}
    refuted = {"softmax-rope-attention", "favor+-none-position-loss"}
    assert verdicts == {key: "not supported" if key in refuted else "supported" for key in expected}
    assert rows["bound-falls"].estimate.n == len(BOUND_WIDTHS)
    assert rows["elu+1-rope-after-steeper"].verdict == "inconclusive"
    assert "seed 2: elu+1-none failed: why" in rows["elu+1-rope-after-steeper"].remark


def test_what_is_not_measured_is_not_run(root):
    for path in root.glob("*.csv"):
        path.unlink()
    # One run failed for good; its claims are as undecided as before.
    lost = {"elu+1-none-position-loss", "elu+1-rope-after-steeper"}
    assert {key for key, row in rows_of(root).items() if row.verdict != "not run"} <= lost
    assert not [key for key, row in rows_of(root).items() if "supported" in row.verdict]


def test_a_draw_or_a_seed_that_is_missing_is_not_run(root):
    scores = pd.read_csv(root / "scores.csv")
    SCORES.write(root, scores[(scores["draw"] != 5) | (scores["distance"] != 1024)])
    losses = pd.read_csv(root / "position_loss.csv")
    POSITION_LOSS.write(root, losses[losses["seed"] != 1])
    rows = rows_of(root)
    assert rows["not-monotone-512"].remark == "1 of 200 draws are missing or unfinished"
    assert rows["not-monotone-128"].verdict == "supported"
    assert rows["softmax-none-position-loss"].verdict == "not run"


def test_the_command_of_the_reference_trains_enough_of_every_variant_that_is_judged():
    options = REFERENCES["decay"].options.split()
    assert int(options[options.index("--seeds") + 1]) >= 3
    assert set(VARIANTS) <= set(options[options.index("--variants") + 1].split(","))
    keys = {claim.key for claim in claims_of(STUDY)}
    assert {f"{variant}-position-loss" for variant in VARIANTS} < keys
