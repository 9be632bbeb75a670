"""What evaluations record of the attention when diagnose_windows is set."""

import dataclasses

import pytest
import torch

from experiments.config import Config
from experiments.train.models import build_model
from experiments.variants import get_variant
from linear_rope.diagnostics import diagnose_model
from tests.made_up import metrics_rows
from tests.training import train_run

CONFIG = Config(
    **{"layers": 2, "dim": 16, "heads": 2, "num_features": 8, "context": 24, "batch_size": 2, "steps": 4},
    **{"warmup_steps": 1, "log_every": 1, "evaluate_every": 2, "evaluation_windows": 3, "test_windows": 2},
    **{"redraw_every": 1, "dropout": 0.1, "diagnose_windows": 2},
)
STATISTICS = ("negative_weights", "smallest_row_sum", "largest_row_sum")
OF_DENOMINATORS = ("nonpositive_denominators", "smallest_denominator")
VARIANTS = {"favor+-rope-after@denominator=rotated": OF_DENOMINATORS, "favor+-rope-after@denominator=none": ()}


@pytest.fixture(scope="module")
def task(next_byte):
    return next_byte(CONFIG)


def trained(directory, variant, config, task):
    directory.mkdir()
    train_run(directory, get_variant(variant), 0, get_variant(variant).config(config), task, torch.device("cpu"))
    return metrics_rows(directory / "metrics.jsonl")


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_validation_records_the_statistics_and_training_is_as_without(tmp_path, task, variant):
    rows = trained(tmp_path / "with", variant, CONFIG, task)
    without = trained(tmp_path / "without", variant, dataclasses.replace(CONFIG, diagnose_windows=0), task)
    recorded = {*STATISTICS, *VARIANTS[variant]}
    for row, other in zip(rows, without, strict=True):
        found = {name for name in row if name in (*STATISTICS, *OF_DENOMINATORS)}
        assert found == (recorded if row["split"] == "validation" else set())
        # Redraws are counted and dropout is drawn: a measurement must not change either.
        kept = row.keys() - found - {"seconds", "tokens_per_second"}
        assert {name: row[name] for name in kept} == {name: other[name] for name in kept}
    assert kept >= {"step", "bits_per_byte"}

    # Before the first step, of the windows that are evaluated first.
    model = build_model(get_variant(variant), get_variant(variant).config(CONFIG), 0, task)
    layers = list(diagnose_model(model, task.diagnosed("validation", 2)).values())
    assert len(layers) == 2
    expected = {
        "negative_weights": (layers[0].negative_share + layers[1].negative_share) / 2,
        "smallest_row_sum": min(layer.row_sums.smallest for layer in layers),
        "largest_row_sum": max(layer.row_sums.largest for layer in layers),
    }
    if VARIANTS[variant]:
        expected["nonpositive_denominators"] = sum(layer.nonpositive_denominators for layer in layers) / 2
        expected["smallest_denominator"] = min((layer.smallest_denominator for layer in layers), key=abs)
    # The same sums in the same order, once as a model that was trained before and once as one that was not.
    assert {name: rows[0][name] for name in recorded} == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_another_library_s_attention_has_no_statistics_and_trains(tmp_path, task):
    config = dataclasses.replace(CONFIG, redraw_every=0, dropout=0.0)
    rows = trained(tmp_path / "peer", "performer-pytorch", config, task)
    assert {name for row in rows for name in row} & {*STATISTICS, *OF_DENOMINATORS} == set()
