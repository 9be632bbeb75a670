"""Tables, figures and statements of a comparison whose primary metric is an accuracy."""

import json

import pytest
from msgspec.structs import replace

from experiments.judge.curves import read_curves
from experiments.judge.runs import Runs
from experiments.judge.statistics import contrasts, summarise
from experiments.records.record import read_comparison
from experiments.report.tables import main_table
from experiments.show.rows import read_rows
from experiments.studies.registry import STUDIES
from tests.experiments.show.rows import picture_of
from tests.made_up import DATA, metrics_rows


@pytest.fixture(params=[True, False], ids=["with a loss", "without"])
def root(request, make_comparison, tmp_path):
    """Softmax with RoPE has the lower loss and the higher accuracy, (10 - bits per byte) / 10."""
    make_comparison(
        tmp_path, "softmax-none,softmax-rope", data=[DATA | {"name": "recall-64"}],
        loss=lambda name, seed, step: 5 - 2 * (name == "softmax-rope") + seed / 10 + (100 - step) / 100,
    )  # fmt: skip
    for path in tmp_path.glob("*/*/metrics.jsonl"):
        rows = metrics_rows(path)
        for row in rows:
            bits = row["bits_per_byte"] if request.param else row.pop("bits_per_byte")
            row |= {"loss": bits} if row["split"] == "train" else {"accuracy": (10 - bits) / 10}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_it_is_summarised_and_compared_in_its_direction(root):
    comparison, curves = read_comparison(root), read_curves(root, read_comparison(root))
    rows = summarise(root, comparison, curves).set_index(["variant", "metric"])
    assert rows.loc[("softmax-rope", "test_accuracy"), ["unit", "n"]].tolist() == ["share of answers", 3]
    assert rows.loc[("softmax-rope", "test_accuracy_minus_baseline"), "mean"] == pytest.approx(0.2)
    has_loss = "bits_per_byte" in set(curves["metric"])
    assert (("softmax-rope", "test_bits_per_byte_minus_baseline") in rows.index) == has_loss
    # The baseline ends at a loss of 5 or an accuracy of 0.5, where the other begins.
    assert rows.loc[("softmax-rope", "steps_to_baseline"), "mean"] == 0
    assert contrasts(comparison.variants[1], comparison, "accuracy") == [
        ("test_accuracy_minus_baseline", "softmax-none")
    ]
    assert {state for state, _ in Runs(root, comparison, curves).fates.values()} == {"done"}


@pytest.mark.parametrize(("tested", "step"), [("last", 100), ("best", 20)])
def test_validation_is_of_the_weights_that_are_tested(root, tested, step):
    comparison = read_comparison(root)
    comparison.config["tested"] = tested
    for path in root.glob("softmax-rope/*/metrics.jsonl"):
        rows = metrics_rows(path)
        for row in rows:
            if row["split"] == "validation":  # after the best step it falls; before the first one it does not count
                row["accuracy"] = {0: 0.9, 20: 0.8}.get(row["step"], 0.7 - row["step"] / 1000)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    curves = read_curves(root, comparison)
    rows = summarise(root, comparison, curves).set_index(["variant", "metric"])
    mine = curves[(curves["variant"] == "softmax-rope") & (curves["split"] == "validation")]
    expected = mine[(mine["metric"] == "accuracy") & (mine["step"] == step)]["value"].mean()
    assert rows.loc[("softmax-rope", "validation_accuracy"), "mean"] == pytest.approx(expected)


def test_an_interval_of_a_correlation_goes_below_zero(root):
    comparison = read_comparison(root)
    summary = summarise(root, comparison, read_curves(root, comparison))
    summary["metric"] = summary["metric"].str.replace("accuracy", "spearman")
    summary.loc[summary["metric"] == "test_spearman", ["mean", "low", "high"]] = -0.02, -0.06, 0.02
    comparison.objective = replace(comparison.objective, metric="spearman")
    cells = main_table(summary, comparison)[f"test {comparison.objective.quantity}"]
    assert cells[0].split() == ["-0.020", "[-0.060,", "0.020]"]


def test_tables_and_figures_show_it_with_its_unit_and_direction(root):
    comparison, curves = read_comparison(root), read_curves(root, read_comparison(root))
    table = main_table(summarise(root, comparison, curves), comparison)
    assert table["test accuracy (share of answers)"].str.split("\n").str[0].tolist() == ["0.440", "0.640"]
    assert table["minus baseline"].tolist()[1].startswith("+0.2000")
    quantity = "accuracy (share of answers)"
    rows = read_rows(root, STUDIES["convergence"])
    assert picture_of(rows, "validation").get_supylabel() == quantity
    is_loss = "bits_per_byte" in set(curves["metric"])
    assert picture_of(rows, "training").get_supylabel() == ("bits per byte" if is_loss else "loss (nats)")
    assert "(above 0: better)" in picture_of(rows, "validation-gain").get_supylabel()
    left, right = picture_of(rows, "final").axes
    assert left.get_xlabel().replace("\n", " ") == f"test {quantity}; higher is better"
    assert "above 0: better" in right.get_xlabel().replace("\n", " ")
    assert picture_of(rows, "overview") is None
