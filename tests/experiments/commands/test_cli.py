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
from safetensors.torch import load_file

from experiments.cli import main
from experiments.config import LIMITS, Config
from experiments.records.record import run_status
from experiments.records.store import check_directory, make_directory
from experiments.studies.convergence.figures import STUDY
from experiments.training.models import check_memory
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
    parameters = {variant["name"]: variant["parameters"] for variant in record["variants"]}
    assert max(parameters.values()) <= 1.01 * min(parameters.values())
    weights = load_file(comparison / "softmax-none/seed0/checkpoint/step00000004/model.safetensors")
    assert parameters["softmax-none"] == sum(weight.numel() for weight in weights.values())


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


WRONG_USES = [
    ("run", "run needs STUDY"),
    ("rnu", "did you mean 'run'? choose from run, report, claims, list"),
    ("report", "report needs DIRECTORY"),
    ("report .", "comparison.json"),
    ("report absent", "comparison.json"),
    (f"report {'x' * 300}", "File name too long"),
    ("list junk", "list takes no argument 'junk'; leave it out"),
    ("doctor --junk", "doctor takes no option '--junk'; choose from --data-dir"),
    ("generate .", "generate needs --variant and --prompt"),
    ("generate . --variant x --prompt y", "comparison.json"),
    ("train .", "config.json cannot be read"),
    ("run nonsense", "choose from convergence, decay"),
    ("run speed --out taken", "holds 'report.md' and no comparison.json"),
    ("run speed --out dangling", "dangling is in the way"),
]
WRONG_RUNS = [
    ("--stpes 3", "run takes no option '--stpes'; did you mean '--steps'?"),
    ("--step 3", "run takes no option '--step'; did you mean '--steps'?"),
    ("decay", "run takes no argument 'decay'; leave it out"),
    ("--steps", "--steps came without a value; give it one, or leave it out"),
    ("--steps many", "--steps is 'many'; give a whole number, as 3"),
    ("--seeds 1.5", "--seeds is '1.5'; give a whole number, as 3"),
    (f"--steps {'9' * 5000}", "999'; give a whole number, as 3"),
    ("--seeds 0", "--seeds is 0; give 1 or more"),
    ("--seeds 200000", "--seeds is 200000; give 1,000 or less"),
    ("--workers 0", "--workers is 0; give 1 or more"),
    ("--workers 1000000000", "--workers is 1000000000; give 4,096 or less"),
    ("--dry-run=yes", "--dry-run is 'yes', and takes no value; give it alone"),
    ("--run-timeout 0", "--run-timeout is 0.0; give a positive number of seconds"),
    ("--run-timeout nan", "--run-timeout is nan"),
    ("--preset huge", "--preset is 'huge'; choose from smoke, cpu, gpu, paper"),
    ("--variants softmax-none,softmax-rpoe", "did you mean 'softmax-rope'?"),
    ("--variants=", "--variants is empty"),
    (f"--variants {'a' * 100_000}", "choose from softmax-none"),
    ("--plugin no_such_module", "--plugin no_such_module cannot be imported"),
    ("--launcher lokal", "did you mean 'local'?"),
    ("--config absent.toml", "absent.toml cannot be read"),
    ("--num-features 63", "give an even number, such as 64"),
    ("--dim 130 --heads 4", "not divisible"),
    ("--dim 131072 --layers 10000", "this machine has"),
    ("--context 1", "context"),
    ("--data nonsense", "stdlib"),
    ("--data text", "--data-file"),
    ("--data stdlib --data-file short", "--data"),
    ("--data-file absent", "absent"),
    ("--data-file .", "directory"),
    ("--data-file short", "context"),
    ("--data-dir absent", "absent"),
    ("--data-dir=", "--data-dir is empty"),
    ("--out file", "cannot be written"),
    ("--out file/below", "cannot be written"),
    ("--out taken", "holds 'report.md' and no comparison.json"),
    ("--out loop", "--out loop cannot be written (Too many levels of symbolic links)"),
    (f"--out new/{'x' * 300} --dry-run", "File name too long"),
    (f"--out {'new/' * 1000}", "File name too long"),
    ("--out a\0\x1b[31mb", r"--out a\x00\x1b[31mb cannot be written (embedded null byte)"),
    ("--out \ud800", r"--out \ud800 cannot be written"),
]
WRONG_USES += [(f"run convergence {words}", said) for words, said in WRONG_RUNS]


@pytest.mark.parametrize(("words", "said"), WRONG_USES, ids=range(len(WRONG_USES)))
def test_wrong_use_is_one_line_and_status_2(tmp_path, capsys, monkeypatch, words, said):
    scratch(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(words.split(" ")) == 2
    output, message = capsys.readouterr()
    assert output == ""
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert message[:-1].isprintable()
    assert len(message) < 5000
    assert said in message
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


FRACTIONS = ("learning_rate", "weight_decay", "gradient_clip", "dropout", "initial_std")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name, (smallest, _) in LIMITS.items() for value in (10**30, smallest - 1)),
        *((name, value) for name in ("steps", "dim") for value in (2.0, "2", True, None)),
        *((name, float(value)) for name in FRACTIONS for value in ("nan", "inf", "-1")),
        *(("learning_rate", value) for value in (0, 1e31, 10**400, "0.1", True)),
        *(("data", 3), ("precision", "float16"), ("denominator", None), ("gradient_clip", 0.0), ("dropout", 1.0)),
    ],
)
def test_a_setting_out_of_its_range_or_of_the_wrong_type_is_named(name, value):
    with pytest.raises(ValueError, match=rf"{name} is .*; give ") as caught:
        dataclasses.replace(Config(), **{name: value})
    assert "\n" not in str(caught.value)


def test_tokens_of_a_step_are_bounded_together():
    with pytest.raises(ValueError, match="batch_size times context is 68,719,476,736 tokens a step; give values"):
        Config(context=2**18, batch_size=2**18)


def test_models_larger_than_the_memory_are_refused_before_one_is_built():
    check_memory(Config(), 100)
    with pytest.raises(ValueError, match=r"2 models of .* at least 24,576.0 GiB .* or fewer --workers"):
        check_memory(Config(dim=65536, layers=16), 2)
    with pytest.raises(ValueError, match=r"1 model of .* at least 12,288.0 GiB .* --dim or --layers$"):
        check_memory(Config(dim=65536, layers=16), 1)


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
