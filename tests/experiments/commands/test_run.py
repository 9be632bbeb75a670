"""The run command, from its words to what it leaves."""

import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file

from experiments.cli import main
from experiments.commands.plan import make_plan, nothing_to_do
from experiments.config import Config
from experiments.console import make_console
from experiments.data.registry import load_data
from experiments.options import as_words
from experiments.presets import get_preset
from experiments.records.lock import only_one_run
from experiments.records.record import read_comparison, run_status
from experiments.studies.registry import STUDIES
from experiments.train.objectives import NextByte
from linear_rope import kernels
from tests.made_up import DATA, metrics_rows, repeated_rows, run_options_of, trained_here

PROJECT = Path(__file__).parents[3]
QUICK = ["--preset", "smoke", "--steps", "4", "--evaluate-every", "2", "--log-every", "1", "--checkpoint-every", "2"]


def quick_run(out, *more, experiment="convergence"):
    return main(["run", experiment, *QUICK, "--out", str(out), *more])


VARIANTS = ["softmax-none", "favor+-rope-after"]
BOTH = ["--variants", ",".join(VARIANTS)]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / "smoke"
    with trained_here():
        assert quick_run(root, *BOTH, "--seeds", "2") == 0
    return root


def test_the_main_job_leaves_all_that_the_contract_names(comparison):
    files = {str(path.relative_to(comparison)) for path in comparison.rglob("*") if path.is_file()}
    expected = {"comparison.json", "curves.csv", "summary.csv", "report.html", "report.md", "attention.csv"}
    assert expected <= files
    for variant in VARIANTS:
        for seed in (0, 1):
            assert run_status(comparison, variant, seed).state == "done"
            for name in ("config.json", "metrics.jsonl", "status.json"):
                assert f"{variant}/seed{seed}/{name}" in files
            assert any(name.startswith(f"{variant}/seed{seed}/checkpoint/") for name in files)
    figures = [{path.stem for path in comparison.glob(f"figures/*.{kind}")} for kind in ("png", "svg")]
    assert figures[0] == figures[1] >= {"validation", "training", "throughput", "attention"}
    curves = pd.read_csv(comparison / "curves.csv")
    assert list(curves.columns) == ["variant", "seed", "step", "tokens", "split", "metric", "value"]
    recorded = metrics_rows(comparison / "favor+-rope-after" / "seed1" / "metrics.jsonl")
    of_run = curves[(curves["variant"] == "favor+-rope-after") & (curves["seed"] == 1)]
    assert len(of_run) == sum(len(row) - 3 for row in recorded)
    record = json.loads((comparison / "comparison.json").read_text())
    assert (record["config"]["steps"], record["data"][0]["name"]) == (4, "stdlib")
    assert record["versions"]["torch"]
    parameters = {variant["name"]: variant["parameters"] for variant in record["variants"]}
    assert max(parameters.values()) <= 1.01 * min(parameters.values())
    weights = load_file(comparison / "softmax-none/seed0/checkpoint/step00000004/model.safetensors")
    assert parameters["softmax-none"] == sum(weight.numel() for weight in weights.values())


@pytest.mark.usefixtures("quickly")
def test_running_again_trains_nothing_and_changes_no_record(comparison, tmp_path, capsys):
    again = shutil.copytree(comparison, tmp_path / comparison.name)
    before = {path: path.read_bytes() for path in again.rglob("metrics.jsonl")}
    assert quick_run(again, *BOTH, "--seeds", "2") == 0
    assert "4 of 4 runs are done already, and the report is newer: there is nothing to do" in capsys.readouterr().out
    for more in ("2 --steps 5", "3", "2 --baseline softmax-rope", "2 --variants elu+1-none@dim=64", "2 --dry-run"):
        words = ["convergence", *QUICK, *BOTH, "--out", str(again), "--seeds", *more.split()]
        assert not nothing_to_do(make_plan(run_options_of(*words))), more
    assert quick_run(again, "--variants=softmax-none", "--seeds", "3", "--dry-run") == 0
    assert "4 runs done already; left: 2 runs, 2,048 tokens" in capsys.readouterr().out
    (again / "softmax-none/seed0/status.json").touch()
    assert quick_run(again, *BOTH, "--seeds", "2") == 0
    assert "report: " in capsys.readouterr().out
    assert {path: path.read_bytes() for path in again.rglob("metrics.jsonl")} == before
    assert quick_run(again, *BOTH, "--learning-rate", "0.5") == 2
    there = get_preset("smoke", STUDIES["convergence"]).config.learning_rate
    assert f"learning_rate ({there} there, 0.5 now)" in capsys.readouterr().err


def test_with_notes_and_a_text_of_ones_own_there_is_nothing_to_do_either(make_comparison, tmp_path):
    text = tmp_path / "mine.txt"
    text.write_text("a line of my own text\n" * 400)
    data = [DATA | {"sha256": load_data("text", None, text).sha256}]
    config = vars(Config(steps=100, evaluate_every=20, log_every=20, batch_size=2, context=32, data="text"))
    notes = ["the length leaves out softmax-none seed 0: why"]
    root = make_comparison(tmp_path / "out", "softmax-none", 1, config=config, data=data, notes=notes)
    (root / "report.html").touch()
    words = ["convergence", "--out", root, "--data-file", text, "--variants=softmax-none", "--seeds=1"]
    plan = make_plan(run_options_of(*words, *as_words(config)))
    said = nothing_to_do(plan)
    assert said.startswith(f"note: {notes[0]}\nwithout the report, the same command measures again")
    assert said.endswith(
        f"1 of 1 runs are done already, and the report is newer: there is nothing to do ({root}/report.html)"
    )
    text.write_text("another line of my own text\n" * 400)
    assert not nothing_to_do(plan)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.slow
@pytest.mark.full
def test_processes_beside_each_other_give_equal_metrics_and_a_comparison_can_grow(tmp_path, comparison):
    out = tmp_path / "processes"
    assert quick_run(out, "--workers", "2", "--variants", VARIANTS[0]) == 0
    assert quick_run(out, "--workers", "2", "--variants", VARIANTS[1], "--seeds", "2") == 0
    runs = [run.relative_to(out) for run in out.glob("*/seed*")]
    assert len(runs) == 4
    for run in runs:
        assert repeated_rows(out / run / "metrics.jsonl") == repeated_rows(comparison / run / "metrics.jsonl")
        weights = run / "checkpoint" / "step00000004" / "model.safetensors"
        assert (out / weights).read_bytes() == (comparison / weights).read_bytes()
    first, second = ((root / "attention.csv").read_text().splitlines() for root in (out, comparison))
    assert len(first) > 1
    assert set(first) <= set(second)


@pytest.mark.usefixtures("quickly")
def test_a_failed_run_is_recorded_and_the_others_finish(tmp_path, capsys):
    # Weights of about 1e30 overflow float32 in the first update's loss.
    out = tmp_path / "failing"
    status = quick_run(
        out, "--variants", "softmax-none,elu+1-none", "--learning-rate", "1e30", "--gradient-clip", "1e30",
        "--warmup-steps", "0",
    )  # fmt: skip
    assert status == 1
    output = capsys.readouterr().out
    for variant in ("softmax-none", "elu+1-none"):
        state = run_status(out, variant, 0)
        assert state.state == "failed"
        assert "at step 1" in state.reason
        assert f"failed: {variant} seed 0" in output
    assert "failed" in (out / "report.md").read_text()


@pytest.mark.usefixtures("quickly")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("variants", "words", "told"),
    [
        ("favor+-rope-before,performer-pytorch", "", "future leaks into the past"),
        (
            "favor+-rope-after",
            "--precision bfloat16 --redraw-every 2 --denominator rotated --heads 1",
            "The denominator is rotated.",
        ),
    ],
)
def test_the_peer_and_other_settings_run(tmp_path, variants, words, told):
    assert quick_run(tmp_path / "out", "--variants", variants, *words.split()) == 0
    assert told in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize("study", ["convergence", "speed"], ids=["trains", "measures"])
def test_a_second_command_is_refused_while_the_first_holds_the_directory(tmp_path, capsys, study):
    for dry in ([], ["--dry-run"]):
        with only_one_run(tmp_path, make_console()):
            assert main(["run", study, "--preset", "smoke", "--out", str(tmp_path), *dry]) == 2
        assert f"is being written by process {os.getpid()} on" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("quickly")
def test_a_trial_that_was_made_with_something_else_is_refused(tmp_path, capsys):
    out = tmp_path / "tuned"
    options = ["--variants", "softmax-none", "--learning-rates", "0.001,0.002"]
    assert quick_run(out, *options) == 0
    path = out / "tuning/softmax-none@learning_rate=0.001/seed0/config.json"
    path.write_text(path.read_text().replace('"layers": 1', '"layers": 3'))
    capsys.readouterr()
    for words in (["report", str(out)], ["run", "convergence", *QUICK, *options, "--dry-run", "--out", str(out)]):
        assert main(words) == 2
        assert "layers (3 there, 1 now)" in capsys.readouterr().err


def test_dry_run_prints_the_plan_and_what_computes_linear_attention_and_writes_nothing(tmp_path, capsys):
    name = "elu+1-none@decay=pair-fixed@pair_denominator=head@output_gate=sigmoid"
    assert quick_run(tmp_path / "planned", "--dry-run", "--seeds", "3", "--variants", f"softmax-none,{name}") == 0
    output = capsys.readouterr().out
    assert f" {name} " in output
    assert "position" not in output  # there are no tables
    assert f"native kernel: {kernels()['native']}\n" in output
    assert "6 runs, 6,144 tokens" in output  # 2 variants x 3 seeds x 4 steps x 4 sequences x 64 tokens
    assert "estimated time" in output
    assert not (tmp_path / "planned").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("quickly")
def test_floors_are_computed_once_for_a_number_of_steps_and_not_for_a_plan(tmp_path, monkeypatch):
    computed, floors = [], NextByte.floors
    monkeypatch.setattr(NextByte, "floors", lambda self, config: computed.append(config.steps) or floors(self, config))
    root, words = tmp_path / "run", ["run", "convergence", *QUICK, "--variants", "elu+1-none", "--out"]
    assert main([*words, str(root), "--dry-run"]) == 0
    assert computed == []
    for seeds in ("1", "1", "2"):
        assert main([*words, str(root), "--seeds", seeds]) == 0
        assert main(["report", str(root)]) == 0
    assert computed == [4]
    assert {each.steps for each in read_comparison(root).floors} == {4}
