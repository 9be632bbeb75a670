"""The recall experiment, from a run through the command line and from made-up records."""

import json

import pytest

from experiments.cli import main
from experiments.judge.curves import read_curves
from experiments.records.record import read_comparison
from experiments.show.keys import shown_of
from experiments.show.rows import summary
from experiments.studies.registry import STUDIES
from tests.made_up import DATA, metrics_rows

from .conftest import drawn, headline_of, rows_of


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


ACCURACY = {"softmax-rope": [0.9, 0.95, 1.0], "elu+1-none": [0.2, 0.3, 0.25]}


@pytest.fixture
def made_up(tmp_path, make_comparison):
    """Two variants of three seeds with accuracies; the third seed of the third variant failed."""
    variants = "softmax-rope,elu+1-none,elu+1-rope-after"
    fates = {("elu+1-rope-after", seed): ("failed", "made up") for seed in range(3)}
    data = [DATA | {"name": "recall-64"}]
    root = make_comparison(tmp_path / "made-up", variants, data=data, fates=fates)
    for path in root.glob("*/*/metrics.jsonl"):
        name, seed = path.parts[-3], int(path.parts[-2].removeprefix("seed"))
        rows = metrics_rows(path)
        for row in rows:
            if row["split"] != "train":
                row["accuracy"] = ACCURACY.get(name, [0.1] * 3)[seed] * row["step"] / 100
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    comparison = read_comparison(root)
    comparison.variants[1].settings = {"dim": 64}
    return root, comparison, read_curves(root, comparison)


def test_means_and_intervals_between_0_and_1(made_up):
    shown = shown_of(STUDIES["recall"])
    rows = rows_of(STUDIES["recall"], *made_up).of(shown.quantities["accuracy"])
    found = summary(rows, ["variant"], shown.quantities["accuracy"])
    (row,) = found[found["variant"] == "softmax-rope"].itertuples()
    # Student's t with 2 degrees of freedom, 4.303, times 0.05 / √3 is 0.124; a share is 1 at most.
    assert (row.mean, row.low, row.high) == pytest.approx((0.95, 0.826, 1.0), abs=1e-3)


def test_figures_are_drawn_with_a_failed_variant(made_up, tmp_path):
    assert drawn(STUDIES["recall"], tmp_path, *made_up)[1] == {"accuracy-by-variant", "accuracy-by-step"}


def test_the_headline_says_what_there_is(made_up):
    assert "Softmax attention with RoPE gives 95.0% [82.6%, 100.0%]" in headline_of(STUDIES["copying"], *made_up)


def test_a_text_has_no_accuracy_to_draw(made_up, tmp_path):
    root, comparison, curves = made_up
    nothing = curves[curves["metric"] != "accuracy"]
    assert drawn(STUDIES["recall"], tmp_path, root, comparison, nothing) == ([], set())
