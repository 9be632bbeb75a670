"""What numbers are said to decide, and the sentences they stand in."""

from math import inf
from types import SimpleNamespace

import pytest

from experiments.judge.statistics import Estimate, with_interval
from experiments.judge.verdicts import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED
from experiments.show.keys import Quantity, Shown
from experiments.show.rows import read_rows, setting_label
from experiments.show.style import legend_label
from experiments.show.words import headline, verdict
from experiments.studies.registry import STUDIES
from tests.made_up import make_record

LOSS = {"loss": Quantity(label="loss", where={"metric": "test_{metric}"})}


def judged(low, high, said, region=(-inf, 0.0)):
    claim = SimpleNamespace(region=region, margin=0.02, show="{:+.3f}".format)
    return SimpleNamespace(claim=claim, estimate=Estimate(3, (low + high) / 2, low, high, 0.1), verdict=said)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (judged(-0.3, -0.1, SUPPORTED), "elu+1 lower"),
        (judged(0.1, 0.3, NOT_SUPPORTED), "elu+1 higher"),
        (judged(-0.01, 0.01, NOT_SUPPORTED), "no difference beyond 0.020"),
        (judged(-0.04, 0.01, SUPPORTED, (-inf, 0.05)), "no difference beyond 0.050"),
        (judged(-0.3, -0.1, INCONCLUSIVE), "undecided"),  # its interval alone would decide: Holm's correction does not
        (judged(-0.1, 0.3, NOT_SUPPORTED), "undecided"),
    ],
)
def test_a_verdict_needs_the_interval_and_the_corrected_rule(row, told):
    assert verdict(row, "elu+1") == told


def test_below_three_seeds_there_is_no_interval_and_no_verdict():
    row = judged(0, 0, NOT_SUPPORTED)
    row.estimate = Estimate(2, -1.0, std=0.1)
    assert verdict(row, "elu+1") == "undecided"
    assert with_interval(1.0, float("nan"), float("nan"), ".2f") == "1.00"


@pytest.fixture
def said(make_comparison, tmp_path):
    """The headline of some sentences about three variants."""
    root = make_comparison(tmp_path / "made-up", "softmax-none,softmax-rope,elu+1-none")
    rows = read_rows(root, STUDIES["convergence"])
    return lambda *sentences: headline(rows, Shown(quantities=LOSS, headline=[*sentences]))


def test_a_sentence_without_its_number_drops_out_and_of_none_the_best_is_said(said):
    assert said("{value:loss/relu-none} is not there", "{mean:loss/elu+1-none} is") == "3.182 is"
    assert said("{difference:no-such-claim}").startswith("Elu+1 without positions ends lowest, at 3.18 bits per byte;")


def test_a_field_that_there_is_not_is_an_error_that_says_what_would_do(said):
    with pytest.raises(ValueError, match=r"\{median:...\} is no field; give one of difference, value"):
        said("{median:loss}")


@pytest.mark.parametrize(
    ("names", "config", "said"),
    [
        (
            ["favor+-none@num_features=32", "favor+-none", "elu+1-none", "elu+1+paired-none"],
            {"num_features": 64},
            ["M = 32", "M = 64", "M = D", "M = 2·D"],
        ),
        (
            ["favor+-none", "favor+-none@redraw_every=100"],
            {"redraw_every": 0},
            ["never redrawn", "redrawn every 100 steps"],
        ),
        (
            [
                "softmax-rope",
                "elu+1-rope-after@rope_base=500",
                "elu+1-rope-after@decay=pair@denominator=none@qk_norm=yes",
            ],
            {},
            ["nothing set", "base 500", "gate of each pair, no denominator, normalised queries and keys"],
        ),
    ],
)
def test_what_tells_variants_apart_is_said(names, config, said):
    comparison = make_record(config=config, variants=names)
    assert [setting_label(variant, comparison) for variant in comparison.variants] == said
    assert legend_label("elu+1-rope-after@decay=gate@local_conv=4") == "elu+1-rope-after,\ngate, local convolution"
