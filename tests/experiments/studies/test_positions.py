"""The positions study: the time of a step, longer windows, verdicts, the figure and the answer from made-up files."""

import pandas as pd
import pytest

from experiments.config import Config
from experiments.studies.length.measure import LOSSES
from experiments.studies.positions import measure as positions
from experiments.train.models import build_model
from experiments.variants import get_variant
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


@pytest.mark.parametrize("name", ["softmax-rope", "elu+1-rope-after", "softmax-t5"])
def test_the_longest_windows_are_sixty_four_and_rope_is_stretched_in_them(next_byte, monkeypatch, tmp_path, name):
    config = Config(layers=1, dim=16, heads=2, context=4)
    record, objective = make_record(config=vars(config), variants=[name]), next_byte(config)
    model = build_model(get_variant(name), Config(**{**vars(config), **get_variant(name).settings}), 0, objective)
    monkeypatch.setattr("experiments.studies.tables.finished_runs", lambda root, comparison: [(name, 0)])
    monkeypatch.setattr("experiments.studies.tables.trained_models", lambda *_: [(name, 0, model.eval())])
    monkeypatch.setattr(positions, "measure_cost", lambda *_: [])
    read = dict.fromkeys((4, 8, 16), 0)

    def count(model, inputs):
        read[inputs[0].shape[1]] += inputs[0].numel()

    model.register_forward_pre_hook(count)
    assert positions.measure(tmp_path, record, objective) == []
    ways = 1 + 3 * ("rope" in name)
    assert read == {4: 2 * 64 * 16, 8: ways * 64 * 16, 16: ways * 64 * 16}
    found = LOSSES.read(tmp_path)
    assert found[found["length"] == 16]["method"].nunique() == ways
