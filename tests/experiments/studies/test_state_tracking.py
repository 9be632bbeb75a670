"""The study of state tracking: accuracies by position, verdicts and the answer from made-up ones."""

import itertools

import pandas as pd
import pytest
import torch

from experiments.analysis.statistics import summarise
from experiments.config import Config
from experiments.data.registry import load_corpus
from experiments.report.answer import Findings
from experiments.studies import tables
from experiments.studies.registry import STUDIES
from experiments.studies.state_tracking import measure as tracking
from experiments.studies.state_tracking.answer import answer
from experiments.studies.state_tracking.figures import by_length_table, figures
from experiments.training.chosen_objective import make_objective
from tests.made_up import make_record

from .conftest import drawn, judged, opened, verdicts, write

TRACKING = STUDIES["state-tracking"]
NOISE = (0.0, 0.001, -0.001)
BEST, WITHOUT = "elu+1-selective-after@decay=gate", "elu+1-rope-after@decay=gate"


class Parity(torch.nn.Module):
    """Says the parity as far as position 100, and from there that it is even."""

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, tokens):
        state = tokens.cumsum(1) % 2
        state[:, 100:] = 0
        return torch.nn.functional.one_hot(state, 2).float()


def test_accuracy_is_measured_by_position(monkeypatch, tmp_path):
    config = Config(context=64, batch_size=50, data="parity-64")
    task = make_objective(load_corpus("parity-64"), config)
    monkeypatch.setattr(tables, "trained_models", lambda *_: [("elu+1-none", 0, Parity())])
    assert tracking.measure(tmp_path, make_record(config=vars(config), variants=["elu+1-none"]), task) == []
    found = pd.read_csv(tmp_path / "tracking.csv").set_index("factor")["accuracy"]
    assert found[1] == 1
    # Right as far as 100, and by chance, half of the time, after it: 5 standard errors of the fair coins.
    assert found[2] == pytest.approx((36 + 28 / 2) / 64, abs=5 * 0.5 / (256 * 28) ** 0.5)
    assert found[4] == pytest.approx(0.5, abs=5 * 0.5 / (256 * 128) ** 0.5)


def test_a_text_has_no_state(next_byte, tmp_path):
    config = Config(layers=1, dim=16, heads=2, context=32, batch_size=4)
    (note,) = tracking.measure(tmp_path, make_record(config=vars(config)), next_byte(config))
    assert "give --data parity-64" in note


@pytest.fixture
def made_up(make_comparison, tmp_path):
    def make(best=0.97, variants=TRACKING.variants):
        root = make_comparison(tmp_path / "made-up", ",".join(variants), 3)
        rows = [
            (variant, seed, factor, (best if variant == BEST else (0.95, 0.6, 0.5)[place]) + NOISE[seed])
            for variant, seed in itertools.product(variants, range(3))
            for place, factor in enumerate(tracking.FACTORS)
        ]
        write(tracking.ACCURACIES, root, rows)
        root, comparison, curves = opened(root)
        comparison.config["data"] = "s3-16"
        return root, comparison, curves

    return make


def test_verdicts(made_up):
    found = verdicts(TRACKING, *made_up())
    assert found[f"{BEST}-goes-on"] == found[f"{BEST}-tracks"] == found["selective-more-with-gate"] == "supported"
    assert found[f"{WITHOUT}-goes-on"] == found["selective-more"] == "not supported"


@pytest.mark.parametrize(("best", "words"), [(0.97, "tracked by elu+1"), (0.7, "guessing gets 17%")])
def test_the_answer_names_what_goes_on(made_up, best, words):
    root, comparison, curves = made_up(best)
    rows = judged(TRACKING, root, comparison, curves)
    said = answer(Findings(comparison, summarise(root, comparison, curves), rows, root))
    assert words in said
    assert f"{best:.0%}" in said


def test_the_table_and_the_figures(made_up, tmp_path):
    root, comparison, curves = made_up()
    shown = by_length_table(tracking.ACCURACIES.read(root), comparison).set_index("variant")
    assert shown.loc[BEST].tolist() == ["3", "97%", "97%", "97%"]
    assert shown.loc[WITHOUT].tolist() == ["3", "95%", "60%", "50%"]
    _, stems = drawn(figures, tmp_path / "output", root, comparison, curves)
    assert stems == {"by-length"}


def test_variants_without_settings_need_no_legend(made_up, tmp_path):
    _, stems = drawn(figures, tmp_path / "output", *made_up(variants=["softmax-rope", "elu+1-rope-after"]))
    assert stems == {"by-length"}
