"""The study of state tracking: accuracies by position, verdicts and the answer from made-up ones."""

import itertools
import json

import pandas as pd
import pytest
import torch

from experiments.config import Config
from experiments.data.registry import load_corpus
from experiments.studies import tables
from experiments.studies.registry import STUDIES
from experiments.studies.state_tracking import measure as tracking
from experiments.train.chosen_objective import make_objective
from tests.made_up import make_record

from .conftest import drawn, headline_of, opened, verdicts, write

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
        root = make_comparison(tmp_path / f"made-up-{best}", ",".join(variants), 3)
        rows = [
            (variant, seed, factor, (best if variant == BEST else (0.95, 0.6, 0.5)[place]) + NOISE[seed])
            for variant, seed in itertools.product(variants, range(3))
            for place, factor in enumerate(tracking.FACTORS)
        ]
        write(tracking.ACCURACIES, root, rows)
        record = json.loads((root / "comparison.json").read_text())
        record["config"]["data"] = "s3-16"
        (root / "comparison.json").write_text(json.dumps(record))
        return opened(root)

    return make


def test_verdicts(made_up):
    found = verdicts(TRACKING, *made_up())
    assert found[f"{BEST}-goes-on"] == found[f"{BEST}-tracks"] == found["selective-more-with-gate"] == "supported"
    assert found[f"{WITHOUT}-goes-on"] == found["selective-more"] == "not supported"


def test_the_headline_names_the_best(made_up):
    said = headline_of(TRACKING, *made_up())
    assert "Up to four times the training length the state is tracked by elu+1 with selective angles" in said
    assert "97.0%" in said
    said = headline_of(TRACKING, *made_up(0.7))
    assert "tracked by" not in said
    assert "guessing gets 16.7%" in said


def test_the_table_and_the_figures(made_up, tmp_path):
    entries, stems = drawn(TRACKING, tmp_path / "output", *made_up())
    shown = entries[-1].table.set_index("variant").map(lambda cell: cell.partition(" ")[0])
    assert shown.loc[BEST].tolist() == ["3", "97.0%", "97.0%", "97.0%"]
    assert shown.loc[WITHOUT].tolist() == ["3", "95.0%", "60.0%", "50.0%"]
    assert list(shown.columns) == ["n", "32", "64", "128"]
    assert stems == {"by-length"}


def test_variants_without_settings_are_drawn_too(made_up, tmp_path):
    _, stems = drawn(TRACKING, tmp_path / "output", *made_up(variants=["softmax-rope", "elu+1-rope-after"]))
    assert stems == {"by-length"}
