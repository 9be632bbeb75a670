"""The study of state tracking: accuracies by position."""

import pandas as pd
import pytest
import torch

from experiments.config import Config
from experiments.data.registry import load_data
from experiments.studies import tables
from experiments.studies.state_tracking import measure as tracking
from experiments.train.chosen_objective import make_objective
from tests.made_up import make_record


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
    task = make_objective(load_data("parity-64"), config)
    monkeypatch.setattr(tables, "trained_models", lambda *_: [("elu+1-none", 0, Parity())])
    assert tracking.measure(tmp_path, make_record(config=vars(config), variants=["elu+1-none"]), task) == []
    found = pd.read_csv(tmp_path / "tracking.csv").set_index("factor")["accuracy"]
    assert found[1] == 1
    # Right as far as 100, and by chance, half of the time, after it: 5 standard errors of the fair coins.
    assert found[2] == pytest.approx((36 + 28 / 2) / 64, abs=5 * 0.5 / (256 * 28) ** 0.5)
    assert found[4] == pytest.approx(0.5, abs=5 * 0.5 / (256 * 128) ** 0.5)
