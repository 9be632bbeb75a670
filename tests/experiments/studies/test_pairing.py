"""The pairing experiment: from made-up files with known effects to verdicts."""

import pandas as pd
import pytest

from experiments.analysis.claims import claims_of
from experiments.analysis.curves import read_curves
from experiments.analysis.statistics import summarise
from experiments.analysis.verdicts import evaluate
from experiments.records.record import read_comparison
from experiments.studies.pairing import measure, variance
from experiments.studies.pairing.figures import STUDY, figures

NOISE = (0.0, 0.001, -0.001)
SQUARED_ERROR = {variance.PLAIN: 1, variance.EQUAL_DRAWS: 2, variance.PAIRED: 10}


@pytest.fixture
def made_up(make_comparison, tmp_path):
    """Makes a comparison in which pairing features is better (sign -1) or worse (sign 1)."""

    def make(sign):
        def loss(name, seed, step):
            better = 0.01 * int(name.partition("=")[2] or 60)
            return 9 + seed - better + (sign * (4 + better + NOISE[seed]) if "+paired-" in name else 0)

        root = make_comparison(tmp_path, ",".join(STUDY.variants), 3, loss=loss)
        rows = [
            (
                name,
                directions,
                64,
                0.5,
                distance,
                draw,
                (1 + draw / 100) * (SQUARED_ERROR[name] ** sign * distance if directions == "orthogonal" else 1),
                1.0,
            )
            for name in (variance.PLAIN, variance.PAIRED, variance.EQUAL_DRAWS)
            for directions in ("orthogonal", "independent")
            for distance in (8, 64, 512)
            for draw in range(measure.VARIANCE_DRAWS)
        ]
        pd.DataFrame(rows, columns=measure.VARIANCE.columns).to_csv(root / "variance.csv", index=False)
        comparison = read_comparison(root)
        return root, comparison, read_curves(root, comparison)

    return make


@pytest.mark.parametrize("sign", [-1, 1])
def test_every_claim_reads_the_variants_that_it_names(made_up, sign):
    rows = evaluate(claims_of(STUDY), *made_up(sign), reference="pairing", command="run")
    found = {row.claim.key: row.estimate.mean for row in rows}
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
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(("sign", "verdict"), [(-1, "supported"), (1, "not supported")])
def test_verdicts_follow_the_effects(made_up, sign, verdict):
    rows = evaluate(claims_of(STUDY), *made_up(sign), reference="pairing", command="run")
    assert {row.claim.key: row.verdict for row in rows} == {claim.key: verdict for claim in claims_of(STUDY)}


def test_figures_are_drawn(made_up, tmp_path):
    root, comparison, curves = made_up(-1)
    figures(root, tmp_path / "made", comparison, curves, summarise(root, comparison, curves))
    stems = {path.stem for path in (tmp_path / "made" / "figures").glob("*.png")}
    assert stems == {"final-loss", "validation", "variance"}
