"""The mask experiment: from made-up files with known effects to verdicts, and new draws of a model's features."""

import itertools

import pandas as pd
import pytest
import torch

from experiments.config import Config
from experiments.studies import tables
from experiments.studies.mask import measure as mask
from experiments.studies.registry import STUDIES
from experiments.train.models import build_model
from experiments.variants import get_variant
from tests.made_up import make_record

from .conftest import drawn, judged, opened, verdicts, write

STUDY = STUDIES["mask"]

NOISE = (0.0, 0.001, -0.001)
"""by seed; its t at a difference of 0.09 or more is 155"""
AFTER, BEFORE, NONE, PAIRED = "favor+-rope-after", "favor+-rope-before", "favor+-none", "favor+paired-rope-after"
RISE = {AFTER: 0.5, BEFORE: -0.2, NONE: -0.3, PAIRED: 0.1}
"""of the loss, with features that are redrawn every 100 steps; a tenth of it every 1000"""
NEW_RISE = {AFTER: 0.9, BEFORE: 0.2, NONE: 0.1, PAIRED: 0.4}
"""of the loss of a finished model, with new features"""
MEANS = {
    "after-100": 0.5,
    "after-1000": 0.05,
    "before-100": -0.2,
    "none-100": -0.3,
    "paired-100": 0.1,
    "after-more-than-before": 0.7,
    "paired-less-than-plain": -0.4,
    "after-more-than-before-1000": 0.07,
    "after-more-than-none-100": 0.8,
    "new-features-after": 0.9,
    "new-features-after-more-than-before": 0.7,
    "new-features-paired-less-than-plain": -0.5,
}
STEPS = 1100


def made_up_loss(sign):
    def loss(name, seed, step):
        variant, _, redraws = name.partition("@redraw_every=")
        return 3 + seed + (sign * ((RISE[variant] * 100 / int(redraws)) + NOISE[seed]) if redraws else 0)

    return loss


@pytest.fixture
def made_up(make_comparison, tmp_path):
    """Makes a comparison with these rises, or with falls of the same size (sign -1)."""

    def make(sign=1):
        every = {"steps": STEPS, "every": STEPS // 2}
        root = make_comparison(tmp_path, ",".join(STUDY.variants), 3, loss=made_up_loss(sign), **every)
        places = itertools.product(NEW_RISE, range(3), range(mask.NEW_DRAWS + 1))
        write(mask.REDRAWN, root, [(*at, 3.0 + sign * (NEW_RISE[at[0]] + NOISE[at[1]]) * (at[2] > 0)) for at in places])
        return opened(root)

    return make


@pytest.mark.parametrize(("sign", "verdict"), [(1, "supported"), (-1, "not supported")])
def test_every_claim_reads_the_variants_that_it_names_and_verdicts_follow(made_up, sign, verdict):
    rows = judged(STUDY, *made_up(sign))
    expected = {key: sign * mean for key, mean in MEANS.items()}
    assert {key: row.estimate.mean for key, row in rows.items()} == pytest.approx(expected)
    assert {row.verdict for row in rows.values()} == {verdict}


def test_how_often_features_were_redrawn_is_told(made_up):
    rows = judged(STUDY, *made_up())
    assert rows["after-1000"].remark == "features were redrawn once, the last time 100 steps before the end"
    assert rows["after-more-than-before"].remark.startswith("features were redrawn 10 times, the last time 100 steps")


@pytest.mark.parametrize(
    ("steps", "not_run"), [(1001, set()), (1000, {"after-1000", "after-more-than-before-1000"}), (100, {*MEANS})]
)
def test_training_too_short_for_a_redraw_says_nothing(make_comparison, tmp_path, steps, not_run):
    root = make_comparison(tmp_path, ",".join(STUDY.variants), 3, loss=made_up_loss(1), steps=steps, every=steps)
    found = verdicts(STUDY, *opened(root))
    of_redraws = {key for key in MEANS if not key.startswith("new-features")}
    assert {key for key in of_redraws if found[key] == "not run"} == not_run & of_redraws


def test_a_missing_draw_is_not_run(made_up):
    root, comparison, curves = made_up()
    table = pd.read_csv(root / "redrawn.csv")
    write(mask.REDRAWN, root, table[(table["variant"] != AFTER) | (table["seed"] != 1) | (table["draw"] != 3)])
    found = verdicts(STUDY, root, comparison, curves)
    not_run = {key for key, verdict in found.items() if verdict == "not run"}
    assert not_run == {key for key in found if key.startswith("new-features")}


def test_figures_are_drawn(made_up, tmp_path):
    entries, stems = drawn(STUDY, tmp_path / "made", *made_up())
    assert [entry.title for entry in entries][-1] == "New features after training"
    assert len(stems) == 2
    row = entries[-1].table.set_index("variant").loc[AFTER]
    # Student's t with 2 degrees of freedom, 4.303, times 0.001 / √3 is 0.0025.
    assert (row["n"], row["new features minus own"]) == ("3", "+0.900 [+0.898, +0.902]")
    assert row["own features"].startswith("3.000")


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
