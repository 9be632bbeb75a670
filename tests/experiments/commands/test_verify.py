"""``benchmark verify``: what is on record comes out again, and what does not is found."""

import json
import subprocess
import sys
import tempfile

import pytest
import torch
from msgspec.structs import asdict

from experiments.cli import main
from experiments.commands import verify
from experiments.config import Config
from experiments.records import environment
from experiments.records.parquet import read_rows, read_statuses, runs_as_parquet
from tests.experiments.conftest import made_up_loss
from tests.made_up import quick

RUN = "softmax-rope seed 0"
RECALL = {"name": "answers", "metric": "accuracy", "unit": "share", "better": "higher", "vocabulary": 256}


@pytest.fixture
def check(make_comparison, tmp_path, monkeypatch, capsys):
    """Verifies a made-up run that is "trained again" with other losses; returns the exit status and what is said."""

    def make(root, number, **other):
        make_comparison(root, "softmax-rope", 1, experiment="benchmark", **other)
        path = root / "softmax-rope/seed0/metrics.jsonl"
        path.write_text(path.read_text().replace('"tokens_per_second": 1', number))

    # The numbers are in its training rows, on record and now.
    def check(loss, numbers=('"seconds": 1', '"seconds": 2'), **other):
        make(tmp_path / "language", numbers[0], **other)

        def train_again(recorded, code, at, threads, data_dir):
            objective = asdict(recorded.comparison.objective)
            make(at / recorded.root.name, numbers[1], loss=loss, **other | {"objective": objective})
            return ""

        monkeypatch.setattr(verify, "train_again", train_again)
        status = main(["benchmark", "verify", str(tmp_path), "--sample=9", "--seed=4", "--at-this-commit"])
        return status, capsys.readouterr().out

    return check


def alike():
    return {"versions": environment.versions(), "machine": environment.machine(torch.device("cpu"))}


def with_one(step, by):
    return lambda variant, seed, at: made_up_loss(variant, seed, at) + (by if at == step else 0)


SIZE = {"steps": 100, "evaluate_every": 20, "log_every": 20, "batch_size": 2, "context": 32}
TOLERANCE = verify.TOLERANCE["bits_per_byte"]
PLUGIN = {"module": "json", "package": "", "version": "", "sha256": "ab"}


@pytest.mark.parametrize("made", [{}, alike()])
def test_equal_curves_are_the_same_digits(check, made):
    status, said = check(made_up_loss, **made)
    assert status == 0
    assert "1 of 1 runs in" in said
    assert "drawn with --seed 4" in said
    assert f"language: {RUN}: same digits (" in said


@pytest.mark.parametrize(
    ("by", "made", "status", "told"),
    [
        (1e-9, alike(), 1, "differs, trained with the same;"),
        (1e-9, alike() | {"config": vars(Config(**SIZE, threads=2))}, 0, "as trained with threads 1 (on record: 2);"),
        (1e-9, alike() | {"plugins": [PLUGIN]}, 0, "as trained with other code of json;"),
        (-0.9 * TOLERANCE, {}, 0, f"within tolerance ({TOLERANCE:g} of bits_per_byte), as trained with "),
        (-0.9 * TOLERANCE, {}, 0, "(on record: a processor);"),
        (1.1 * TOLERANCE, {}, 1, "differs, trained with "),
    ],
)
def test_the_last_digit_counts_where_the_same_made_it_and_elsewhere_a_tolerance(check, by, made, status, told):
    found, said = check(with_one(60, by), **made)
    assert found == status
    assert told in said
    assert "; most at step 60: " in said


@pytest.mark.parametrize(("name", "status"), [("gradient_norm", 0), ("learning_rate", 1)])
def test_what_the_weights_do_not_decide_has_no_tolerance(check, name, status):
    got, said = check(made_up_loss, [f'"{name}": 1', f'"{name}": 2'])
    assert got == status
    assert f"{RUN}: {('within tolerance', 'differs')[status]}" in said
    assert f"train {name} 1100 on record, 2100 now" in said


def test_other_digits_of_a_metric_without_tolerance_are_not_judged(check, make_comparison, tmp_path):
    make_comparison(tmp_path / "recall", "softmax-rope", 1, objective=RECALL)
    status, said = check(with_one(60, 1e-9))
    assert status == 0
    assert f"recall: {RUN}: not judged: trained with " in said
    assert said.endswith("1 of 2 judged: 1 as on record, 0 not\n")
    assert main(["benchmark", "verify", str(tmp_path / "recall"), "--at-this-commit"]) == 1


def test_a_plugin_of_the_working_directory_is_found(make_comparison, tmp_path, monkeypatch, capfd):
    (recorded,) = verify.recorded_runs(make_comparison(tmp_path / "language", "softmax-rope", 1))
    monkeypatch.chdir(tmp_path)
    run, instead = subprocess.run, [sys.executable, "-c", "import my_plugin, experiments"]
    monkeypatch.setattr(subprocess, "run", lambda _, **other: run(instead, **other))
    assert "status 1" in verify.train_again(recorded, environment.ROOT, tmp_path / "without", None, None)
    assert "No module named 'my_plugin'" in capfd.readouterr().err
    (tmp_path / "my_plugin.py").touch()
    assert verify.train_again(recorded, environment.ROOT, tmp_path / "again", None, None) == ""


@pytest.mark.parametrize(
    ("commit", "words", "told"),
    [
        ("0123abc", ["--threads=0"], "--threads"),
        ("0123abc", [], "/language was trained at commit 0123abc, which is not to be had from"),
        ("unknown", [], "names no commit ('unknown'); give --at-this-commit"),
        ("--force", [], "names no commit ('--force'); give --at-this-commit"),
        (None, [], "holds no run that is done"),
    ],
)
def test_what_cannot_be_verified_is_told(make_comparison, tmp_path, capsys, commit, words, told):
    if commit:
        make_comparison(tmp_path / "language", "softmax-rope", 1, git={"commit": commit, "dirty": False})
    assert main(["benchmark", "verify", str(tmp_path), *words]) == 2
    assert told in capsys.readouterr().err


def test_without_git_its_lack_is_told(make_comparison, tmp_path, capsys, monkeypatch):
    make_comparison(tmp_path / "language", "softmax-rope", 1, experiment="benchmark")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["benchmark", "verify", str(tmp_path)]) == 2
    assert "(git cannot be run: No such file or directory)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_of_this_commit_comes_out_again_and_an_edited_record_is_found(tmp_path, capsys, monkeypatch):
    """In a worktree of its own, of which nothing stays."""
    pytest.importorskip("pyarrow")
    if environment.git().commit == "unknown":
        pytest.skip("this is no git checkout")
    monkeypatch.setenv("LINEAR_ROPE_NATIVE", "0")  # nothing is built
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    packed, runs = tmp_path / "packed", tmp_path / "runs"
    words = ["run", "benchmark", "--preset=smoke", "--workers=1", "--task=parity-16", "--variants=softmax-rope"]
    with quick():
        assert main([*words, f"--out={runs}", f"--pack={packed}"]) == 0
    assert main(["benchmark", "verify", str(packed), "--sample=3"]) == 0
    assert f"parity-16: {RUN}: same digits (" in capsys.readouterr().out

    path = packed / "parity-16/runs.parquet"
    rows, statuses = dict(read_rows(path)), json.loads(read_statuses(path))
    edited = next(row for row in rows["softmax-rope", 0] if row.split == "test")
    edited.metrics["accuracy"] += 0.01
    path.write_bytes(runs_as_parquet(rows, statuses))
    assert main(["benchmark", "verify", str(packed), "--sample=3"]) == 1
    said = capsys.readouterr().out
    assert f"parity-16: {RUN}: differs" in said
    assert f"test accuracy {edited.metrics['accuracy']:.6g} on record" in said
    assert str(tmp_path) not in subprocess.check_output(["git", "worktree", "list"], cwd=environment.ROOT, text=True)
