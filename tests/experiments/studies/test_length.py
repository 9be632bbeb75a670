"""The length experiment: losses by position, windows of other lengths, and verdicts from made-up files."""

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.config import Config
from experiments.studies import tables
from experiments.studies.length import measure as length
from experiments.train.models import build_model
from experiments.train.position_loss import bins, recut
from experiments.variants import get_variant
from linear_rope.attention.multi_head import RoPEAttention
from tests.made_up import make_record

CONFIG = Config(layers=1, dim=16, heads=2, num_features=8, context=32, batch_size=4)


@pytest.fixture(scope="module")
def task(next_byte):
    return next_byte(CONFIG)


def model_of(variant, task):
    return build_model(get_variant(variant), CONFIG, 0, task).eval()


@pytest.mark.parametrize(
    ("size", "ranges"),
    [(8, [(0, 7)]), (16, [(0, 15)]), (17, [(0, 15), (16, 16)]), (64, [(0, 15), (16, 31), (32, 63)])],
)
def test_bins_double_and_end_with_the_window(size, ranges):
    assert bins(size) == ranges


def test_shorter_windows_have_the_same_targets_after_the_same_bytes():
    windows = torch.arange(2 * 9).view(2, 9) * 10
    windows[1, 0] = windows[0, -1]
    for size in (1, 2, 4, 8):
        cut = recut(windows, size)
        assert cut.shape == (16 // size, size + 1)
        assert torch.equal(cut[:, 1:].flatten(), windows[:, 1:].flatten())
        assert torch.equal(cut[:, :-1].flatten(), windows[:, :-1].flatten())


def test_a_model_is_evaluated_at_every_length_and_left_as_trained(task, monkeypatch, tmp_path):
    names = ("softmax-rope", "elu+1-rope-after", "softmax-learned", "favor+-none", "performer-pytorch")
    models = {name: model_of(name, task) for name in names}
    monkeypatch.setattr(tables, "trained_models", lambda *_: [(variant, 0, model) for variant, model in models.items()])
    notes = length.measure(tmp_path, make_record(config=vars(CONFIG), variants=names), task)
    assert notes == [
        f"{variant} is not evaluated beyond 32 tokens, where its table of positions ends"
        for variant in ("softmax-learned", "performer-pytorch")
    ]
    table = pd.read_csv(tmp_path / "length.csv")
    means = length.window_means(table).set_index(["variant", "method", "length"])["bits_per_byte"].sort_index()
    lengths = [32 * factor for factor in length.FACTORS]
    assert list(means["softmax-rope", "as trained"].index) == lengths
    assert list(means["favor+-none", "as trained"].index) == lengths
    assert list(means["softmax-learned", "as trained"].index) == [32]
    assert list(means["performer-pytorch", "as trained"].index) == [32]
    # The same windows in batches of another size.
    for variant in names:
        short = table[(table["variant"] == variant) & (table["method"] == length.IN_SHORT_WINDOWS)]
        mean = np.average(short["bits_per_byte"], weights=short["last"] - short["first"] + 1)
        assert mean == pytest.approx(means[variant, "as trained", 32], rel=1e-5)
    added = length.by_position(tmp_path).set_index(["variant", "offset"])["value"]
    assert set(added.index.get_level_values("variant")) == {"softmax-rope", "elu+1-rope-after", "favor+-none"}
    assert added["softmax-rope"].index.tolist() == [8, 24, 48, 96, 192, 384]
    assert added["softmax-rope"].loc[:31].tolist() == pytest.approx([0, 0], abs=5e-6)
    assert added["softmax-rope"].loc[63:].abs().min() > 2e-5
    for method in length.SCALINGS:
        for name in ("softmax-rope", "elu+1-rope-after"):
            assert list(means[name, method].index) == lengths[1:]
        assert means["softmax-rope", method, 512] != means["softmax-rope", "as trained", 512]
    attention = [module for model in models.values() for module in model.modules() if isinstance(module, RoPEAttention)]
    assert attention
    assert all(module.rope_scaling is None for module in attention)
