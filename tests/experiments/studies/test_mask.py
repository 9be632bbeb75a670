"""The mask experiment: from made-up files with known effects to verdicts, and new draws of a model's features."""

import pandas as pd
import torch

from experiments.config import Config
from experiments.studies import tables
from experiments.studies.mask import measure as mask
from experiments.train.models import build_model
from experiments.variants import get_variant
from tests.made_up import make_record

AFTER, BEFORE, NONE, PAIRED = "favor+-rope-after", "favor+-rope-before", "favor+-none", "favor+paired-rope-after"


def test_models_are_evaluated_with_new_features_and_left_with_their_own(monkeypatch, tmp_path, next_byte):
    config = Config(layers=1, dim=16, heads=2, num_features=8, context=16, batch_size=2)
    task = next_byte(config)
    names = [AFTER, f"{AFTER}@redraw_every=100", "softmax-none"]
    models = {name: build_model(get_variant(name), config, 0, task).eval() for name in names}
    before = {name: {k: v.clone() for k, v in model.state_dict().items()} for name, model in models.items()}
    monkeypatch.setattr(tables, "trained_models", lambda *_: [(name, 0, model) for name, model in models.items()])
    assert mask.measure(tmp_path, make_record(config=vars(config)), task) == []
    table = pd.read_csv(tmp_path / "redrawn.csv")
    assert list(table["variant"].unique()) == names[:2]
    assert list(table["draw"]) == 2 * list(range(mask.NEW_DRAWS + 1))
    # Equal weights and draws: both variants have the same.
    assert table["bits_per_byte"].nunique() == mask.NEW_DRAWS + 1
    for name, model in models.items():
        assert all(torch.equal(value, before[name][key]) for key, value in model.state_dict().items())
