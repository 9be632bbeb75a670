"""The positions study: the time of a step."""

import pandas as pd

from experiments.config import Config
from experiments.studies.positions import measure as positions
from tests.made_up import make_record


def test_a_step_of_every_variant_is_timed_in_every_round(next_byte, monkeypatch, tmp_path):
    config = Config(layers=1, dim=16, heads=2, context=16, batch_size=2)
    monkeypatch.setattr(positions, "SECONDS", 1e-4)
    names = ["softmax-none", "softmax-t5", "elu+1-alibi"]
    record = make_record(config=vars(config), variants=names)
    assert positions.measure_cost(tmp_path, record, next_byte(config)) == []
    found = pd.read_csv(tmp_path / "cost.csv")
    assert found.groupby("variant").size().to_dict() == dict.fromkeys(names, positions.ROUNDS)
    assert (found["seconds"] > 0).all()
    before = (tmp_path / "cost.csv").read_bytes()
    assert positions.measure_cost(tmp_path, record, next_byte(config)) == []
    assert (tmp_path / "cost.csv").read_bytes() == before, "what a quiet machine measured stays"
