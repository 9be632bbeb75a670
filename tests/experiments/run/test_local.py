"""Runs of this machine's processes."""

import dataclasses
import io
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from rich.console import Console

from experiments.data.registry import load_corpus
from experiments.objects import Run
from experiments.presets import get_preset
from experiments.records.files import write_json
from experiments.records.record import run_status
from experiments.run.display import Display
from experiments.run.local import Local
from experiments.run.plan import Training
from experiments.run.runs import train_runs
from tests.made_up import metrics_rows

PROJECT = Path(__file__).parents[3]
CONFIG = dataclasses.replace(get_preset("smoke").config, steps=60, data="text")
RUN = Run("softmax-none", 0)


@pytest.fixture
def training(tmp_path):
    text = tmp_path / "text"
    text.write_text("to be or not to be\n" * 500)
    return Training(tmp_path / "out", CONFIG, None, text, load_corpus("text", None, text).sha256, "cpu")


@pytest.fixture
def directory(training):
    directory = training.job(RUN).directory
    directory.mkdir(parents=True)
    return directory


def train(training):
    return train_runs(training, [RUN], Local(), Display(Console(file=io.StringIO()), [RUN], 0, CONFIG.steps))


@pytest.mark.slow
def test_a_run_has_a_process_of_its_own_where_none_can_be_forked(training, directory, monkeypatch):
    monkeypatch.setattr("experiments.run.local.FORKS", False)
    assert train(training) == {}
    assert run_status(training.root, *RUN).state == "done"
    assert (directory / "log.txt").exists()


@pytest.mark.slow
def test_a_data_set_that_changed_is_not_trained_on(training):
    training.data_file.write_text("another text altogether\n" * 500)
    assert "the data set changed" in train(training)[RUN].reason


def test_an_exception_is_the_reason_and_its_traceback_is_in_the_log(training, directory):
    (directory / "metrics.jsonl").write_text("nonsense\n")
    assert "metrics.jsonl, line 1 is not JSON" in train(training)[RUN].reason
    assert "Traceback" in (directory / "log.txt").read_text()


def test_a_run_left_running_by_a_dead_run_or_without_its_test_figure_is_run_again(training, directory):
    write_json(directory / "status.json", {"state": "running", "reason": None})
    assert train(training) == {}
    assert run_status(training.root, *RUN).state == "done"
    metrics = directory / "metrics.jsonl"
    whole = metrics_rows(metrics)
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:-1]))
    assert train(training) == {}
    assert metrics_rows(metrics) == whole


def test_runs_start_wherever_this_process_was_started_and_with_its_environment_as_it_is_now(training, monkeypatch):
    assert train(training) == {}
    shutil.rmtree(training.root)
    # The fork server of multiprocessing could not be used by any of these.
    monkeypatch.setattr(tempfile, "tempdir", str(training.root.parent / ("long" * 30)))
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    monkeypatch.setenv("LINEAR_ROPE_NATIVE", "0")
    assert train(training) == {}
    assert run_status(training.root, *RUN).trained_with[0].kernel == "PyTorch"


@pytest.mark.slow
@pytest.mark.full
def test_runs_at_a_time_have_a_gpu_each(tmp_path, training):
    (tmp_path / "which_gpus.py").write_text("import os\nprint('my GPUs:', os.environ['CUDA_VISIBLE_DEVICES'])\n")
    arguments = ["--preset", "smoke", "--data-file", str(training.data_file), "--variants", "softmax-none"]
    arguments += ["--seeds", "3", "--steps", "20", "--workers", "3", "--device", "cpu", "--plugin", "which_gpus"]
    command = [sys.executable, "-m", "experiments", "run", "convergence", *arguments, "--out", str(tmp_path / "out")]
    variables = {"CUDA_VISIBLE_DEVICES": "4,7", "PYTHONPATH": os.pathsep.join([str(tmp_path), str(PROJECT)])}
    subprocess.run(command, cwd=PROJECT, env=os.environ | variables, check=True)
    logs = [(tmp_path / f"out/softmax-none/seed{seed}/log.txt").read_text() for seed in range(3)]
    assert [re.findall("my GPUs: (.*)", log) for log in logs] == [["4"], ["7"], ["4"]]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [pytest.param(0.0, marks=pytest.mark.full), 1.5])
def test_a_group_that_is_told_to_stop_while_its_first_run_starts_stops_cleanly(tmp_path, training, seconds):
    out = tmp_path / "out"
    arguments = ["--preset", "smoke", "--data-file", str(training.data_file), "--variants", "softmax-none"]
    command = [sys.executable, "-m", "experiments", "run", "convergence", *arguments, "--out", str(out)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen([*command, "--steps", "100000"], cwd=PROJECT, **pipes)
    while not (out / "comparison.json").exists():
        assert process.poll() is None
        time.sleep(0.001)
    time.sleep(seconds)  # the fork server starts, and imports PyTorch for a while
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert errors == ""
    assert process.returncode == 130
    assert "the same command goes on from the last checkpoints" in output
