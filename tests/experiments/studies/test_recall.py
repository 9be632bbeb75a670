"""The recall experiment, from a run through the command line and from made-up records."""

import json

import pytest

from experiments.cli import main
from experiments.studies.registry import STUDIES
from tests.made_up import metrics_rows


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / "recall"
    options = "--preset smoke --variants softmax-rope,elu+1-none --steps 4 --evaluate-every 2 --checkpoint-every 2"
    assert main(["run", "recall", *options.split(), "--workers", "1", "--out", str(root)]) == 0
    return root


def test_a_run_records_the_accuracy_of_every_evaluation(smoke):
    record = json.loads((smoke / "comparison.json").read_text())
    assert record["data"][0]["name"] == "recall-64"
    assert record["config"]["context"] == 64
    for variant in ("softmax-rope", "elu+1-none"):
        rows = metrics_rows(smoke / variant / "seed0" / "metrics.jsonl")
        evaluations = [row for row in rows if row["split"] != "train"]
        assert [(row["split"], row["step"]) for row in evaluations] == [
            ("validation", 0), ("validation", 2), ("validation", 4), ("test", 4),
        ]  # fmt: skip
        # Eight windows of four answers each.
        assert all(32 * row["accuracy"] == round(32 * row["accuracy"]) for row in evaluations)
        assert all("accuracy" not in row for row in rows if row["split"] == "train")


def test_a_run_draws_its_figures_and_its_table(smoke):
    for stem in ("accuracy-by-variant", "accuracy-by-step"):
        assert (smoke / "figures" / f"{stem}.png").stat().st_size > 5_000
    report = (smoke / "report.md").read_text()
    assert "| variant | n | test accuracy" in report
    assert STUDIES["recall"].question[:60] in report


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--preset", "smoke", "--data", "recall-128"],
            "--context is 64, but the sequences of --data recall-128 have 128 tokens",
        ),
        (["--preset", "paper"], "--preset is paper, which recall does not have; choose from smoke, cpu, gpu"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, capsys, arguments, message):
    assert main(["run", "recall", *arguments, *["--out", str(tmp_path / "out")]]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
