import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock

from experiments.cli import main
from experiments.commands.run_training import _parameters
from experiments.config import LIMITS, Config
from experiments.presets import PRESETS, get_preset
from experiments.records.record import run_status
from experiments.records.store import check_directory, make_directory
from experiments.studies.convergence.figures import STUDY
from experiments.training.models import build_model, check_memory, count_parameters
from experiments.variants import VARIANTS
from tests.made_up import metrics_rows

PROJECT = Path(__file__).parents[3]
QUICK = ["--preset", "smoke", "--steps", "4", "--evaluate-every", "2", "--log-every", "1", "--checkpoint-every", "2"]


def quick_run(out, *more, experiment="convergence"):
    return main(["run", experiment, *QUICK, "--out", str(out), *more])


def assert_same_runs(root, other, runs):
    """Every run of ``root`` has, to the last bit, the metrics and weights it has in ``other``; the times apart."""
    found = sorted(path.parent.relative_to(root) for path in root.glob("*/*/metrics.jsonl"))
    assert len(found) == runs
    for run in found:
        mine, others = (
            [
                json.dumps({key: value for key, value in row.items() if key not in ("seconds", "tokens_per_second")})
                for row in metrics_rows(place / run / "metrics.jsonl")
            ]
            for place in (root, other)
        )
        assert mine == others
        assert {json.loads(row)["split"] for row in mine} == {"train", "validation", "test"}
        weights = run / "checkpoint" / "step00000004" / "model.safetensors"
        assert (root / weights).read_bytes() == (other / weights).read_bytes()


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / "smoke"
    assert quick_run(root, "--seeds", "2", "--workers", "2") == 0
    return root


def test_the_main_job_leaves_all_that_the_contract_names(comparison):
    files = {str(path.relative_to(comparison)) for path in comparison.rglob("*") if path.is_file()}
    expected = {"comparison.json", "curves.csv", "summary.csv", "report.html", "report.md", "attention.csv"}
    assert expected <= files
    variants = STUDY.variants
    for variant in variants:
        for seed in (0, 1):
            assert run_status(comparison, variant, seed).state == "done"
            for name in ("config.json", "metrics.jsonl", "status.json"):
                assert f"{variant}/seed{seed}/{name}" in files
            assert any(name.startswith(f"{variant}/seed{seed}/checkpoint/") for name in files)
    figures = {name.removeprefix("figures/") for name in files if name.startswith("figures/")}
    assert {name.removesuffix(".png") for name in figures if name.endswith(".png")} == {
        name.removesuffix(".svg") for name in figures if name.endswith(".svg")
    }
    assert {"validation.png", "training.png", "throughput.png", "attention.png"} <= figures


def test_curves_hold_every_recorded_number(comparison):
    curves = pd.read_csv(comparison / "curves.csv")
    assert list(curves.columns) == ["variant", "seed", "step", "tokens", "split", "metric", "value"]
    recorded = metrics_rows(comparison / "favor+-rope-after" / "seed1" / "metrics.jsonl")
    of_run = curves[(curves["variant"] == "favor+-rope-after") & (curves["seed"] == 1)]
    assert len(of_run) == sum(len(row) - 3 for row in recorded)
    assert list(of_run["step"].unique()) == [0, 1, 2, 3, 4]


def test_the_record_says_what_was_run(comparison):
    record = json.loads((comparison / "comparison.json").read_text())
    assert record["config"]["steps"] == 4
    assert record["data"][0]["name"] == "stdlib"
    assert len(record["data"][0]["sha256"]) == 64
    assert record["versions"]["torch"]
    parameters = [variant["parameters"] for variant in record["variants"]]
    assert max(parameters) <= 1.01 * min(parameters)


def test_running_again_trains_nothing_and_changes_no_record(comparison, capsys):
    before = {path: path.read_bytes() for path in comparison.rglob("metrics.jsonl")}
    assert quick_run(comparison, "--seeds", "2") == 0
    assert "14 of 14 runs are done already" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in comparison.rglob("metrics.jsonl")} == before


def test_the_report_is_rebuilt_from_the_records_alone(comparison, capsys):
    made = [comparison / name for name in ("curves.csv", "summary.csv", "report.html", "report.md")]
    before = [path.read_bytes() for path in made]
    for path in made:
        path.unlink()
    assert main(["report", str(comparison)]) == 0
    assert capsys.readouterr().out.strip().endswith("report.html")
    assert [path.read_bytes() for path in made] == before


def test_another_configuration_in_the_same_directory_is_refused(comparison, capsys):
    assert quick_run(comparison, "--learning-rate", "0.5") == 2
    message = capsys.readouterr().err
    assert "learning_rate (0.002 there, 0.5 now)" in message


def test_one_and_two_workers_give_equal_metrics_and_a_comparison_can_grow(tmp_path, comparison):
    out = tmp_path / "one"
    assert quick_run(out, "--workers", "1", "--variants", "softmax-none") == 0
    assert quick_run(out, "--workers", "1", "--variants", "elu+1-rope-after", "--seeds", "2") == 0
    record = json.loads((out / "comparison.json").read_text())
    assert [variant["name"] for variant in record["variants"]] == ["softmax-none", "elu+1-rope-after"]
    assert_same_runs(out, comparison, 4)
    first, second = ((root / "attention.csv").read_text().splitlines() for root in (out, comparison))
    assert len(first) > 1
    assert set(first) <= set(second)


@pytest.mark.slow
def test_a_comparison_killed_and_run_again_ends_as_if_it_had_not_been(tmp_path, comparison):
    command = [sys.executable, "-m", "experiments", "run", "convergence", *QUICK, "--out", str(tmp_path / "killed")]
    command += ["--variants", "favor+-rope-after,softmax-rope", "--seeds", "2"]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL, start_new_session=True)
    first = tmp_path / "killed" / "favor+-rope-after" / "seed0" / "checkpoint" / "step00000002"
    deadline = time.monotonic() + 60
    while not first.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert_same_runs(tmp_path / "killed", comparison, 4)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_after_a_checkpoint_and_says_how_to_go_on(tmp_path, number, status):
    out = tmp_path / "stopped"
    command = [sys.executable, "-m", "experiments", "run", "convergence", "--preset", "smoke", "--steps", "100000"]
    command += ["--variants", "softmax-none", "--out", str(out)]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    metrics = out / "softmax-none" / "seed0" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while (not metrics.exists() or len(metrics_rows(metrics)) < 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == status
    assert "the same command goes on from the last checkpoints" in output
    assert f"--variants softmax-none --out {out}" in output
    assert run_status(out, "softmax-none", 0).reason.startswith("stopped at step")
    assert list((out / "softmax-none" / "seed0" / "checkpoint").iterdir())


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


def test_a_variant_that_diverges_in_its_last_step_is_shown_as_failed(tmp_path):
    # One huge update: the training loss of step 0 is finite, what is evaluated after it is not.
    out = tmp_path / "diverging"
    huge = ["--warmup-steps", "0", "--learning-rate", "1e30", "--gradient-clip", "1e30"]
    command = ["run", "convergence", "--preset", "smoke", "--steps", "1", *huge]
    status = main([*command, "--variants", "softmax-none", "--out", str(out)])
    assert status == 1
    assert "validation split" in run_status(out, "softmax-none", 0).reason
    assert "NaN" not in (out / "softmax-none" / "seed0" / "metrics.jsonl").read_text()
    assert "1 of 1 failed" in (out / "report.md").read_text()


def test_the_peer_runs_in_the_same_comparison(tmp_path):
    out = tmp_path / "peer"
    assert quick_run(out, "--variants", "favor+-rope-before,performer-pytorch") == 0
    assert run_status(out, "performer-pytorch", 0).state == "done"
    report = (out / "report.md").read_text()
    assert "future leaks into the past" in report
    assert "performer-pytorch against" not in report


def test_a_second_run_of_the_same_directory_is_refused_while_the_first_holds_it(tmp_path, capsys):
    out = tmp_path / "locked"
    assert quick_run(out, "--variants", "softmax-none") == 0
    with FileLock(out / ".lock"):
        assert quick_run(out, "--variants", "softmax-none") == 2
    message = capsys.readouterr().err
    assert f"process {os.getpid()} on" in message
    assert quick_run(out, "--variants", "softmax-none") == 0


def test_bfloat16_redraw_and_rotated_denominator_run(tmp_path):
    out = tmp_path / "options"
    options = ["--precision", "bfloat16", "--redraw-every", "2", "--denominator", "rotated", "--heads", "1"]
    assert quick_run(out, "--variants", "favor+-rope-after", *options) == 0
    assert "The denominator is rotated." in (out / "report.md").read_text()


@pytest.mark.slow
def test_decay_reproduces_roformer_s_figure_2(tmp_path):
    out = tmp_path / "decay"
    assert quick_run(out, "--variants", "softmax-none,favor+-rope-after", experiment="decay") == 0
    bound = pd.read_csv(out / "bound.csv").set_index("distance")["bound"]
    published = {0: "32.5", 1: "31.5", 50: "12.63", 100: "10.23", 200: "7.24", 256: "6.54"}
    for distance, value in published.items():
        decimals = len(value.partition(".")[2])
        assert f"{bound[distance]:.{decimals}f}" == value
    mask = pd.read_csv(out / "mask.csv")
    assert set(mask["num_features"]) == {16, 64, 256}
    attention = pd.read_csv(out / "attention.csv")
    assert set(attention["variant"]) == {"softmax-none", "favor+-rope-after"}
    softmax = attention[attention["variant"] == "softmax-none"]
    assert (softmax["signed"] == softmax["absolute"]).all()
    assert {"bound.png", "mask.svg", "attention.png"} <= {path.name for path in (out / "figures").iterdir()}


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path, capsys):
    out = tmp_path / "planned"
    assert quick_run(out, "--dry-run", "--seeds", "3") == 0
    output = capsys.readouterr().out
    assert "21 runs, 21,504 tokens" in output  # 7 variants x 3 seeds x 4 steps x 4 sequences x 64 tokens
    assert "favor+-rope-after" in output
    assert "estimated time" in output
    assert not out.exists()


def scratch(tmp_path):
    (tmp_path / "short").write_bytes(b"too short")
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "report.md").write_text("mine")


def wrong_uses(tmp_path):
    return [
        (["run"], "run needs STUDY"),
        (["rnu"], "did you mean 'run'? "),
        (["run", "convergence", "--stpes", "3"], "run takes no option '--stpes'; did you mean '--steps'?"),
        (["run", "convergence", "--step", "3"], "run takes no option '--step'; did you mean '--steps'?"),
        (["run", "convergence", "--variants", "softmax-rpoe"], "did you mean 'softmax-rope'?"),
        (["run", "convergence", "decay"], "run takes no argument 'decay'; leave it out"),
        (["run", "convergence", "--steps"], "--steps came without a value; give it one, or leave it out"),
        (["run", "convergence", "--dry-run=yes"], "--dry-run is 'yes', and takes no value; give it alone"),
        (["run", "convergence", "--plugin", "no_such_module"], "--plugin no_such_module cannot be imported"),
        (["run", "convergence", "--launcher", "lokal"], "did you mean 'local'?"),
        (["run", "convergence", "--config", "absent.toml"], "absent.toml cannot be read"),
        (["report"], "report needs DIRECTORY"),
        (["generate", str(tmp_path)], "generate needs --variant and --prompt"),
        (["generate", str(tmp_path), "--variant", "x", "--prompt", "y"], "comparison.json"),
        (["nonsense"], "choose from run, report, claims, list"),
        (["run", "nonsense"], "choose from convergence, decay"),
        (["run", "convergence", "--nonsense", "3"], "--learning-rate"),
        (["run", "convergence", "--steps", "many"], "--steps"),
        (["run", "convergence", "--preset", "huge"], "--preset is 'huge'; choose from smoke, cpu, gpu, paper"),
        (["run", "convergence", "--variants", "softmax-none,sofmax-rope"], "'sofmax-rope'"),
        (["run", "convergence", "--num-features", "63"], "give an even number, such as 64"),
        (["run", "convergence", "--dim", "130", "--heads", "4"], "not divisible"),
        (["run", "convergence", "--seeds", "0"], "--seeds"),
        (["run", "convergence", "--workers", "0"], "--workers"),
        (["run", "convergence", "--run-timeout", "0"], "--run-timeout is 0.0; give a positive number of seconds"),
        (["run", "convergence", "--run-timeout", "nan"], "--run-timeout is nan"),
        (["run", "convergence", "--data", "nonsense"], "stdlib"),
        (["run", "convergence", "--data", "text"], "--data-file"),
        (["run", "convergence", "--data-file", str(tmp_path / "absent")], "absent"),
        (["run", "convergence", "--data-file", str(tmp_path)], "directory"),
        (["run", "convergence", "--data-file", str(tmp_path / "short")], "context"),
        (["run", "convergence", "--context", "1"], "context"),
        (["run", "convergence", "--variants", ""], "--variants is empty"),
        (["run", "convergence", "--data", "stdlib", "--data-file", str(tmp_path / "short")], "--data"),
        (["run", "convergence", "--data-dir", str(tmp_path / "absent")], "absent"),
        (["run", "convergence", "--out", str(tmp_path / "file" / "below")], "cannot be written"),
        (["run", "convergence", "--out", str(tmp_path / "file")], "cannot be written"),
        (["report", str(tmp_path)], "comparison.json"),
        (["report", str(tmp_path / "absent")], "comparison.json"),
        (["report", str(tmp_path / ("x" * 300))], "File name too long"),
        (["list", "junk"], "list takes no argument 'junk'; leave it out"),
        (["doctor", "--junk"], "doctor takes no option '--junk'; choose from --data-dir"),
        (["run", "convergence", "--steps", "many"], "--steps is 'many'; give a whole number, as 3"),
        (["run", "convergence", "--seeds", "1.5"], "--seeds is '1.5'; give a whole number, as 3"),
        (["run", "convergence", "--steps", "9" * 5000], "999'; give a whole number, as 3"),
        (["run", "convergence", "--data-dir="], "--data-dir is empty"),
        (["run", "convergence", "--seeds", "1000000000"], "--seeds is 1000000000; give 1,000 or less"),
        (["run", "convergence", "--workers", "1000000000"], "--workers is 1000000000; give 4,096 or less"),
        (["run", "convergence", "--dim", "131072", "--layers", "10000"], "this machine has"),
        (["run", "convergence", "--out", str(tmp_path / "taken")], "holds 'report.md' and no comparison.json"),
        (["run", "speed", "--out", str(tmp_path / "taken")], "holds 'report.md' and no comparison.json"),
        (["run", "convergence", "--out", "loop"], "--out loop cannot be written (Too many levels of symbolic links)"),
        (["run", "speed", "--out", "dangling"], "dangling is in the way"),
        (["run", "convergence", "--out", "new/" + "x" * 300, "--dry-run"], "File name too long"),
        (["run", "convergence", "--out", "new/" * 1000], "File name too long"),
        (
            ["run", "convergence", "--out", "a\0\x1b[31mb"],
            r"--out a\x00\x1b[31mb cannot be written (embedded null byte)",
        ),
        (["run", "convergence", "--out", "\ud800"], r"--out \ud800 cannot be written"),
        (["run", "convergence", "--variants", "a" * 100_000], "choose from softmax-none"),
    ]


@pytest.mark.parametrize("index", range(len(wrong_uses(Path()))))
def test_wrong_use_is_one_line_and_status_2(tmp_path, capsys, monkeypatch, index):
    scratch(tmp_path)
    arguments, hint = wrong_uses(tmp_path)[index]
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(arguments) == 2
    output, message = capsys.readouterr()
    assert output == ""
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert message[:-1].isprintable()
    assert len(message) < 5000
    assert hint in message
    assert sorted(tmp_path.rglob("*")) == before


def test_without_a_command_the_usage_is_shown(capsys):
    assert main([]) == 2
    assert "report" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "report" in capsys.readouterr().out


def test_list_names_what_there_is(capsys):
    assert main(["list"]) == 0
    output = capsys.readouterr().out
    for name in ("convergence", "decay", "speed", "favor+-rope-after", "performer-pytorch", "enwik8-4MB", "paper"):
        assert name in output


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 10**30) for name in LIMITS),
        *((name, smallest - 1) for name, (smallest, _) in LIMITS.items()),
        *((name, value) for name in ("steps", "dim") for value in (2.0, "2", True, None)),
        *(
            (name, float("nan"))
            for name in ("learning_rate", "weight_decay", "gradient_clip", "dropout", "initial_std")
        ),
        *(
            (name, float("inf"))
            for name in ("learning_rate", "weight_decay", "gradient_clip", "dropout", "initial_std")
        ),
        *(("learning_rate", value) for value in (0, -1.0, 1e31, 10**400, "0.1", True)),
        *(("data", 3), ("precision", "float16"), ("denominator", None)),
    ],
)
def test_a_setting_out_of_its_range_or_of_the_wrong_type_is_named(name, value):
    with pytest.raises(ValueError, match=rf"{name} is .*; give ") as caught:
        dataclasses.replace(Config(), **{name: value})
    assert "\n" not in str(caught.value)


def test_every_preset_is_within_the_bounds_and_so_is_a_model_a_hundred_times_larger():
    for name in PRESETS:
        assert get_preset(name).config
    Config(layers=100, dim=16384, heads=128, num_features=512, context=65536, batch_size=512, steps=10**7, threads=128)


def test_tokens_of_a_step_are_bounded_together():
    with pytest.raises(ValueError, match="batch_size times context is 68,719,476,736 tokens a step; give values"):
        Config(context=2**18, batch_size=2**18)


def test_models_larger_than_the_memory_are_refused_before_one_is_built():
    check_memory(Config(), 100)
    with pytest.raises(ValueError, match=r"2 models of .* at least 24,576.0 GiB .* or fewer --workers"):
        check_memory(Config(dim=65536, layers=16), 2)
    with pytest.raises(ValueError, match=r"1 model of .* at least 12,288.0 GiB .* --dim or --layers$"):
        check_memory(Config(dim=65536, layers=16), 1)


def test_parameters_of_many_layers_are_those_of_the_model(next_byte):
    config = Config(layers=3, dim=32, heads=2, num_features=16, context=16)
    for name in ("softmax-learned", "favor+-rope-after", "performer-pytorch"):
        model = build_model(VARIANTS[name], config, 0, next_byte(config))
        assert _parameters(VARIANTS[name], config, next_byte(config)) == count_parameters(model)


def test_what_could_not_be_made_leaves_nothing_of_its_directories(tmp_path, monkeypatch):
    def fail(**arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("experiments.records.store.tempfile.TemporaryFile", fail)
    with pytest.raises(ValueError, match=r"cannot be written \(No space left on device\)"):
        make_directory(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_hidden_files_only_is_as_good_as_empty(tmp_path):
    (tmp_path / ".gitkeep").touch()
    check_directory(tmp_path)
    (tmp_path / "report.md").touch()
    with pytest.raises(ValueError, match=r"holds 'report.md' and no comparison.json"):
        check_directory(tmp_path)
    (tmp_path / "comparison.json").touch()
    check_directory(tmp_path)


def test_names_with_spaces_line_breaks_markup_and_bytes_that_are_no_text_work_to_the_end(tmp_path):
    odd = "a  b\n<b>'c'\\ \udcff"
    text, out = tmp_path / f"{odd}.txt", tmp_path / odd
    text.write_text("a line of my own text\n" * 400)
    command = [sys.executable, "-m", "experiments", "run", "convergence", *QUICK, "--variants", "elu+1-none"]
    command += ["--data-file", text, "--out", out]
    # In some locales Python writes the bytes of such a name as they are, in others it refuses to.
    strict = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, check=False, env=strict)
    assert process.returncode == 0, process.stderr.decode()
    record = json.loads((out / "comparison.json").read_text())
    assert record["name"] == odd
    assert record["data"][0]["source"] == text.name
    # The command that the record and a stopped run name is one that a shell takes.
    assert record["command"].encode()  # text, although the name is none
    words = subprocess.run(
        ["bash", "-c", rf"printf '%s\0' {record['command']}"], capture_output=True, check=True
    ).stdout
    assert words.split(b"\0")[1:-1] == [os.fsencode(word) for word in command[1:]]
    for name in ("report.md", "report.html"):
        report = (out / name).read_text()
        assert "<b>" not in report.partition("How to repeat it")[0]
        assert "\\udcff" in report


def test_the_user_s_own_text(tmp_path, capsys):
    text = tmp_path / "my text.txt"
    text.write_text("a line of my own text\n" * 400)
    assert quick_run(tmp_path / "own", "--variants", "elu+1-rope-after", "--data-file", str(text)) == 0
    record = json.loads((tmp_path / "own" / "comparison.json").read_text())
    assert record["data"][0]["name"] == "text"
    assert record["data"][0]["splits"]["train"] == 7920
