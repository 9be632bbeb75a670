"""Learning rates that are found for each variant, from made-up trials and from runs through the command line."""

import json
import math
import shutil

import pytest
from msgspec.structs import replace

from experiments.cli import main
from experiments.commands import run_training
from experiments.records.files import write_json
from experiments.records.record import read_comparison, run_config, run_status, write_record
from experiments.studies.decay import measure as decay
from experiments.training.tuning import (
    choose,
    parse_rates,
    rates_caption,
    rates_table,
    trial_figures,
    trial_name,
    trials,
    untuned,
)
from experiments.variants import get_variant
from tests.made_up import metrics_rows, repeated_rows, undrawn

QUICK = ["--preset", "smoke", "--steps", "4", "--evaluate-every", "2", "--log-every", "1", "--checkpoint-every", "2"]
VARIANT = "softmax-none"


@pytest.mark.parametrize(
    ("text", "rates"),
    [("0.002,0.001", [0.001, 0.002]), ("1e-3, 2e-3,0.001", [0.001, 0.002]), ("1,1e30", [1.0, 1e30])],
)
def test_a_grid_is_ascending_and_has_no_rate_twice(text, rates):
    assert parse_rates(text) == rates


@pytest.mark.parametrize(
    "text",
    ["0.001,0.001", "0.001,", "a,b", "0,0.1", "nan,0.1", "inf,0.1", "1e31,1", "0.1;0.2", "1,2,3,4,5,6,7,8,9,10"],
)
def test_what_is_no_grid_is_refused_in_one_line_before_anything_is_written(text, tmp_path, capsys):
    assert main(["run", "convergence", *QUICK, f"--learning-rates={text}", "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: --learning-rates is {text!r}; give two to 9 positive numbers, 1e+30 or less")
    assert message.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_rates_that_are_close_have_different_names_that_say_them_exactly():
    rates = (0.0012345678, 0.0012345679)
    names = [trial_name("favor+-none@num_features=32", rate) for rate in rates]
    assert [get_variant(name).settings["learning_rate"] for name in names] == list(rates)


@pytest.fixture
def made_up(make_comparison, tmp_path):
    """Makes a comparison and its trials with given validation losses (None: failed); those of the test are opposite."""

    def make(losses):
        rates = [0.001 * 2**k for k in range(len(losses))]
        by_name = {trial_name(VARIANT, rate): loss for rate, loss in zip(rates, losses, strict=True)}
        make_comparison(tmp_path, VARIANT, 1, learning_rates=rates)
        fates = {(name, 0): ("failed", "made up") for name, loss in by_name.items() if loss is None}
        at = make_comparison(
            tmp_path / "tuning", ",".join(by_name), 1, fates=fates, loss=lambda name, seed, step: by_name[name] or 0.1
        )
        for path in at.glob("*/seed0/metrics.jsonl"):
            rows = metrics_rows(path)
            for row in rows:
                if row["split"] == "test":
                    row["bits_per_byte"] = 100 - row["bits_per_byte"]
                if row["split"] == "validation" and row["step"] < 100:
                    row["bits_per_byte"] = 50 - row["bits_per_byte"]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path, read_comparison(tmp_path)

    return make


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([3.0, 2.5, 2.75], 0.002),
        ([3.0, 2.5, 2.0], 0.004),
        ([2.5, 2.5], 0.001),  # equally good: the lower one
        ([None, 2.5, 3.0], 0.002),
        ([3.0, None], 0.001),
        ([None, None], None),
    ],
)
def test_the_choice_is_the_lowest_validation_loss_at_the_end_and_never_of_a_failed_trial(made_up, losses, best):
    root, comparison = made_up(losses)
    assert choose(root, comparison, VARIANT) == best


def test_where_more_is_better_the_choice_is_the_highest_and_an_unfinished_trial_has_no_loss(made_up):
    root, comparison = made_up([3.0, 2.5])
    comparison.objective = replace(comparison.objective, better="higher")
    assert choose(root, comparison, VARIANT) == 0.001
    assert rates_caption(comparison).startswith("Final validation")
    assert "(higher is better)" in rates_caption(comparison)
    write_json(root / "tuning" / trial_name(VARIANT, 0.002) / "seed0" / "status.json", {"state": "running"})
    assert trial_figures(root, comparison, VARIANT) == pytest.approx({0.001: 3.0, 0.002: math.nan}, nan_ok=True)


def test_a_trial_that_tests_its_best_weights_has_their_figure(made_up):
    root, comparison = made_up([3.0, 2.5])
    comparison.config["tested"] = "best"
    assert rates_caption(comparison).startswith("Best validation")
    assert trial_figures(root, comparison, VARIANT) == pytest.approx({0.001: 3.0, 0.002: 2.5})
    # The evaluations before the last one are of 50 less these.
    comparison.objective = replace(comparison.objective, better="higher")
    assert trial_figures(root, comparison, VARIANT) == pytest.approx({0.001: 47.0, 0.002: 47.5})


def test_the_table_shows_every_trial_and_the_rate_of_the_variant(made_up):
    root, comparison = made_up([3.0, 2.5, None])
    (variant,) = comparison.variants
    figures = {"0.001": "3.000", "0.002": "2.500", "0.004": "-"}
    for rate, told in ((0.002, "0.002"), (0.004, "0.004 (edge)"), (None, "not chosen yet")):
        variant.settings = {"learning_rate": rate} if rate else {}
        row = {"variant": VARIANT, **figures, "trained with": told}
        assert rates_table(root, comparison).to_dict("records") == [row]
    variant.name, variant.settings = f"{VARIANT}@learning_rate=0.001", {"learning_rate": 0.001}
    assert rates_table(root, comparison)["trained with"].tolist() == ["0.001"]
    comparison.learning_rates = []
    assert rates_table(root, comparison) is None


def test_trials_are_of_every_variant_but_those_whose_name_fixes_the_rate(made_up):
    _, comparison = made_up([3.0, 2.5])
    tuned = replace(comparison.variants[0], settings={"learning_rate": 0.002})
    rope = replace(tuned, name="softmax-rope@dim=64", baseline="softmax-none@dim=64", settings={"dim": 64})
    fixed = replace(rope, name="softmax-rope@learning_rate=0.1", settings={"learning_rate": 0.1})
    comparison.variants = [tuned, rope, fixed]
    found = {variant.name: (variant.baseline, variant.settings) for variant in trials(comparison).variants}
    assert found == {
        f"{name}@learning_rate={rate}": (f"{baseline}@learning_rate={rate}", {**settings, "learning_rate": rate})
        for name, baseline, settings in ((VARIANT, VARIANT, {}), (rope.name, rope.baseline, {"dim": 64}))
        for rate in (0.001, 0.002)
    }
    assert [variant.name for variant in untuned(comparison)] == ["softmax-rope@dim=64"]


def tuned_run(root, *more, variants=VARIANT, rates="0.001,1e29"):
    """At 1e29 the loss is not finite after a step."""
    arguments = ["run", "convergence", *QUICK, "--variants", variants, "--seeds", "2", "--out", str(root), *more]
    return main([*arguments, *(["--learning-rates", rates] if rates else [])])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / "tuned"
    with undrawn():
        assert tuned_run(root) == 1
    return root


@pytest.fixture
def copied(tuned, tmp_path):
    return shutil.copytree(tuned, tmp_path / "tuned")


@pytest.fixture
def _without_report(monkeypatch):
    """Figures take most of the time of so small a run."""
    monkeypatch.setattr(run_training, "write_report", lambda root, study: root / "report.html")
    monkeypatch.setattr(run_training, "result_table", lambda root: "")
    monkeypatch.setattr(decay, "measure_trained_models", lambda root, comparison, task: [])


def settings_of(root):
    return {variant.name: variant.settings for variant in read_comparison(root).variants}


def test_all_runs_of_a_variant_are_trained_with_the_rate_that_was_chosen(tuned):
    assert settings_of(tuned) == {VARIANT: {"learning_rate": 0.001}}
    assert [run_config(tuned, VARIANT, seed).config["learning_rate"] for seed in (0, 1)] == [0.001, 0.001]
    assert run_status(tuned / "tuning", f"{VARIANT}@learning_rate=1e+29", 0).state == "failed"
    (note,) = run_status(tuned, VARIANT, 0).notes
    assert note.startswith(f"taken over from tuning, {VARIANT}@learning_rate=0.001 seed 0, trained there at commit ")
    trial = tuned / "tuning" / f"{VARIANT}@learning_rate=0.001" / "seed0"
    assert (tuned / VARIANT / "seed0" / "metrics.jsonl").read_bytes() == (trial / "metrics.jsonl").read_bytes()
    report = (tuned / "report.md").read_text()
    assert "| variant | 0.001 | 1e+29 | trained with |" in report
    assert note.split(",")[0] in report


@pytest.mark.parametrize("rates", ["0.001,0.002", None])
def test_another_grid_is_refused(tuned, capsys, rates):
    before = (tuned / "comparison.json").read_bytes()
    assert tuned_run(tuned, rates=rates) == 2
    now = "[0.001, 0.002]" if rates else "[]"
    assert f"differs in learning_rates ([0.001, 1e+29] there, {now} now); give another --out" in capsys.readouterr().err
    assert (tuned / "comparison.json").read_bytes() == before


@pytest.mark.usefixtures("_without_report")
def test_a_run_that_was_stopped_in_a_trial_goes_on_to_the_same_choice(tuned, copied):
    comparison = read_comparison(copied)
    comparison.variants[0].settings = {}
    write_record(copied / "comparison.json", comparison)
    shutil.rmtree(copied / VARIANT)
    trial = copied / "tuning" / f"{VARIANT}@learning_rate=0.001" / "seed0"
    write_json(trial / "status.json", {"state": "queued", "reason": "stopped at step 2"})
    rows = (trial / "metrics.jsonl").read_text().splitlines(keepends=True)
    (trial / "metrics.jsonl").write_text("".join(row for row in rows if json.loads(row)["step"] <= 2))
    shutil.rmtree(trial / "checkpoint" / "step00000004")
    assert tuned_run(copied) == 1
    assert settings_of(copied) == settings_of(tuned)
    for seed in ("seed0", "seed1"):
        before, after = (repeated_rows(root / VARIANT / seed / "metrics.jsonl") for root in (tuned, copied))
        assert before == after


@pytest.mark.usefixtures("_without_report")
def test_variants_that_are_added_later_have_trials_of_their_own_and_change_no_choice(tuned, copied):
    failed = f"{VARIANT}@learning_rate=1e+29/seed0/status.json"
    runs = {path: path.read_bytes() for path in (copied / VARIANT).rglob("*") if path.is_file()}
    assert tuned_run(copied, variants="elu+1-none") == 1
    assert settings_of(copied) == {VARIANT: {"learning_rate": 0.001}, "elu+1-none": {"learning_rate": 0.001}}
    names = [variant.name for variant in read_comparison(copied / "tuning").variants]
    assert names == [
        f"{variant}@learning_rate={rate}" for variant in (VARIANT, "elu+1-none") for rate in ("0.001", "1e+29")
    ]
    assert (copied / "tuning" / failed).read_bytes() == (tuned / "tuning" / failed).read_bytes()
    assert {path: path.read_bytes() for path in runs} == runs


@pytest.mark.usefixtures("_without_report")
def test_a_variant_all_of_whose_trials_failed_keeps_the_comparison_s_rate_for_good(tmp_path, capsys):
    root = tmp_path / "out"
    assert tuned_run(root, rates="1e29,1e30") == 1
    assert f"{VARIANT}: 0.002 (the comparison's: it diverged at all of them)" in capsys.readouterr().out
    assert settings_of(root) == {VARIANT: {"learning_rate": 0.002}}
    assert run_status(root, VARIANT, 0).state == "done"
    row = {"variant": VARIANT, "1e+29": "-", "1e+30": "-", "trained with": "0.002"}
    assert rates_table(root, read_comparison(root)).to_dict("records") == [row]
    assert tuned_run(root, rates="1e29,1e30") == 0, "what is on record is whole, and nothing is tried again"
    assert run_config(root, VARIANT, 1).config["learning_rate"] == 0.002


def test_a_dry_run_tells_what_the_trials_cost(tmp_path, capsys):
    out = tmp_path / "out"
    variants = "softmax-none,softmax-none@learning_rate=0.1"
    assert tuned_run(out, "--dry-run", variants=variants, rates="0.001,0.002,0.004") == 0
    told = capsys.readouterr().out
    # Of the first three trials and the second seed, for the best trial is the first seed; of the other two seeds.
    assert "6 runs, 6,144 tokens" in told
    assert "3 of the runs are trials of learning rates (0.001, 0.002, 0.004)" in told
    assert not out.exists()
