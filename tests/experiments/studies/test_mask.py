"""The mask experiment: from made-up files with known effects to verdicts, and new draws of a model's features."""

import pandas as pd
import pytest
import torch

from experiments.config import Config
from experiments.data.corpus import corpus_of_text
from experiments.studies import tables
from experiments.studies.mask import measure as mask
from experiments.studies.mask.figures import STUDY, figures, redrawn_table
from experiments.training.models import build_model
from experiments.training.objectives import NextByte
from experiments.variants import get_variant
from tests.made_up import make_record

from .conftest import drawn, judged, opened, verdicts

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


def made_up_loss(name, seed, step):
    variant, _, redraws = name.partition("@redraw_every=")
    return 3 + seed + ((RISE[variant] * 100 / int(redraws)) + NOISE[seed] if redraws else 0)


@pytest.fixture
def made_up(make_comparison, tmp_path):
    root = make_comparison(tmp_path, ",".join(STUDY.variants), 3, loss=made_up_loss, steps=STEPS, every=STEPS // 2)
    rows = [
        (variant, seed, draw, 3.0 + (rise + NOISE[seed] if draw else 0))
        for variant, rise in NEW_RISE.items()
        for seed in range(3)
        for draw in range(mask.NEW_DRAWS + 1)
    ]
    pd.DataFrame(rows, columns=mask.REDRAWN.columns).to_csv(root / "redrawn.csv", index=False)
    return opened(root)


def test_every_claim_reads_the_variants_that_it_names_and_is_supported(made_up):
    rows = judged(STUDY, *made_up)
    assert {key: row.estimate.mean for key, row in rows.items()} == pytest.approx(MEANS)
    assert {row.verdict for row in rows.values()} == {"supported"}


def test_how_often_features_were_redrawn_is_told(made_up):
    rows = judged(STUDY, *made_up)
    assert rows["after-1000"].remark == "features were redrawn once, the last time 100 steps before the end"
    assert rows["after-more-than-before"].remark.startswith("features were redrawn 10 times, the last time 100 steps")


@pytest.mark.parametrize(
    ("steps", "not_run"), [(1001, set()), (1000, {"after-1000", "after-more-than-before-1000"}), (100, {*MEANS})]
)
def test_training_too_short_for_a_redraw_says_nothing(make_comparison, tmp_path, steps, not_run):
    root = make_comparison(tmp_path, ",".join(STUDY.variants), 3, loss=made_up_loss, steps=steps, every=steps)
    found = verdicts(STUDY, *opened(root))
    of_redraws = {key for key in MEANS if not key.startswith("new-features")}
    assert {key for key in of_redraws if found[key] == "not run"} == not_run & of_redraws


def test_no_claim_is_supported_where_the_opposite_holds(made_up):
    root, comparison, curves = made_up
    curves = curves.copy()
    redrawn = curves["variant"].str.contains("@")
    # 2·own - redrawn turns every rise into a fall of the same size; the own value is 3 + seed, 3.5 + seed on the test.
    own = 3 + curves["seed"] + 0.5 * (curves["split"] == "test")
    losses = redrawn & (curves["metric"] == "bits_per_byte")
    curves.loc[losses, "value"] = 2 * own[losses] - curves.loc[losses, "value"]
    table = pd.read_csv(root / "redrawn.csv")
    table["bits_per_byte"] = 6 - table["bits_per_byte"]
    table.to_csv(root / "redrawn.csv", index=False)
    assert set(verdicts(STUDY, root, comparison, curves).values()) == {"not supported"}


def test_a_missing_draw_is_not_run(made_up):
    root, comparison, curves = made_up
    table = pd.read_csv(root / "redrawn.csv")
    table.drop(table.index[(table["variant"] == AFTER) & (table["draw"] == 3)][0]).to_csv(
        root / "redrawn.csv", index=False
    )
    found = verdicts(STUDY, root, comparison, curves)
    assert {key for key, verdict in found.items() if verdict == "not run"} == {
        key for key in found if key.startswith("new-features")
    }


def test_the_table_says_what_new_features_add(made_up):
    table = redrawn_table(pd.read_csv(made_up[0] / "redrawn.csv"))
    row = table.set_index("variant").loc[AFTER]
    # Student's t with 2 degrees of freedom, 4.303, times 0.001 / √3 is 0.0025.
    assert tuple(row) == ("3", "3.000", "+0.900 [+0.898, +0.902]")


def test_figures_are_drawn(made_up, tmp_path):
    entries, stems = drawn(figures, tmp_path / "made", *made_up)
    assert [entry.title for entry in entries][-1] == "New features after training"
    assert len(stems) == 2


def test_models_are_evaluated_with_new_features_and_left_with_their_own(monkeypatch, tmp_path, next_byte):
    config = Config(layers=1, dim=16, heads=2, num_features=8, context=16, batch_size=2)
    task = NextByte(corpus_of_text("text", bytes(i * i % 251 for i in range(4000)), "made up", ""), 16, 2)
    names = [AFTER, f"{AFTER}@redraw_every=100", "softmax-none"]
    models = {name: build_model(get_variant(name), config, 0, task).eval() for name in names}
    before = {name: {k: v.clone() for k, v in model.state_dict().items()} for name, model in models.items()}
    monkeypatch.setattr(tables, "trained_models", lambda *_: [(name, 0, model) for name, model in models.items()])
    assert mask.measure(tmp_path, make_record(config=vars(config)), task) == []
    table = pd.read_csv(tmp_path / "redrawn.csv")
    assert list(table["variant"].unique()) == names[:2]
    assert list(table["draw"]) == 2 * list(range(mask.NEW_DRAWS + 1))
    assert (
        table["bits_per_byte"].nunique() == mask.NEW_DRAWS + 1
    )  # equal weights and draws: both variants have the same
    for name, model in models.items():
        assert all(torch.equal(value, before[name][key]) for key, value in model.state_dict().items())
