"""The recall experiment, from a run through the command line and from made-up records."""

import json

import pandas as pd
import pytest

from experiments.analysis.curves import read_curves
from experiments.analysis.statistics import summarise
from experiments.cli import main
from experiments.figures.style import FigureEntry
from experiments.records.record import read_comparison
from experiments.studies.recall import figures as recall_plots
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
    assert recall_plots.STUDY.question[:60] in report


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
    root = make_comparison(
        tmp_path / "made-up", variants, fates={("elu+1-rope-after", seed): ("failed", "made up") for seed in range(3)}
    )
    for path in root.glob("*/*/metrics.jsonl"):
        name, seed = path.parts[-3], int(path.parts[-2].removeprefix("seed"))
        rows = metrics_rows(path)
        for row in rows:
            if row["split"] != "train":
                row["accuracy"] = ACCURACY.get(name, [0.1] * 3)[seed] * row["step"] / 100
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    comparison = read_comparison(root)
    comparison.variants[1].settings = {"dim": 64}
    curves = read_curves(root, comparison)
    return root, comparison, curves, summarise(root, comparison, curves)


def test_points_stand_at_the_tick_of_their_width_and_intervals_between_0_and_1(made_up):
    _, comparison, curves, summary = made_up
    found = recall_plots.test_accuracies(curves, comparison, summary)
    figure = recall_plots.width_figure(found, comparison, summary)
    for axes in figure.axes:
        for line in axes.get_lines():
            assert set(line.get_xdata()) <= {0, 1}
    means = [line for axes in figure.axes for line in axes.get_lines() if line.get_label() == "rope"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in means] == [([1], [pytest.approx(0.95)])]
    # Student's t with 2 degrees of freedom, 4.303, times 0.05 / √3 is 0.124; a share is 1 at most.
    assert recall_plots._bounded(pd.Series([0.9, 0.95, 1.0])) == pytest.approx((0.95, 0.826, 1.0), abs=1e-3)


def test_figures_are_drawn_with_several_widths_and_a_failed_variant(made_up, tmp_path):
    root, comparison, curves, summary = made_up
    entries = recall_plots.figures(root, tmp_path / "output", comparison, curves, summary)
    assert [type(entry) for entry in entries] == [FigureEntry, FigureEntry]
    assert len(list((tmp_path / "output" / "figures").glob("*.png"))) == 2


def test_a_text_has_no_accuracy_to_draw(made_up, tmp_path):
    root, comparison, curves, summary = made_up
    nothing = pd.DataFrame(curves[curves["metric"] != "accuracy"])
    assert recall_plots.figures(root, tmp_path / "output", comparison, nothing, summary) == []
