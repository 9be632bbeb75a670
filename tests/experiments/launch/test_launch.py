import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from experiments.data.registry import load_corpus
from experiments.launch.launcher import Advanced, Ended, Run
from experiments.launch.local import Local
from experiments.launch.runs import Training, train_runs
from experiments.presets import get_preset
from experiments.records.files import write_json
from experiments.records.record import run_directory, run_status
from tests.made_up import metrics_rows

PROJECT = Path(__file__).parents[3]
CONFIG = dataclasses.replace(get_preset("smoke").config, steps=60, data="text")


class Watcher:
    """Notes what happens, and does something at the first progress of each run."""

    def __init__(self, at_progress=lambda run: None):
        self.events = []
        self.at_progress = at_progress
        self.seen = set()

    def show(self, event):
        if isinstance(event, Advanced):
            if event.run not in self.seen:
                self.seen.add(event.run)
                self.at_progress(event.run)
        else:
            self.events.append((str(event.run), event.state if isinstance(event, Ended) else "started"))


@pytest.fixture
def training(tmp_path):
    text = tmp_path / "text"
    text.write_text("to be or not to be\n" * 500)
    return Training(tmp_path / "out", CONFIG, None, text, load_corpus("text", None, text).sha256, "cpu")


@pytest.fixture
def directory(training):
    directory = run_directory(training.root, "softmax-none", 0)
    directory.mkdir(parents=True)
    return directory


def train(training, *runs, display=None):
    return train_runs(training, list(runs), Local(), display or Watcher())


def kill_workers():
    """SIGKILL the runs' processes, as the kernel does when memory runs out; they are the fork server's children."""
    for process in psutil.Process().children(recursive=True):
        if process.ppid() != os.getpid():
            process.kill()


def test_a_killed_process_is_a_failed_run_with_a_reason_and_the_next_run_repeats_it(training):
    first, second = Run("softmax-none", 0), Run("elu+1-none", 0)
    killed = Watcher(at_progress=lambda run: kill_workers() if run == first else None)
    failures = train(training, first, second, display=killed)
    assert list(failures) == [first]
    status = run_status(training.root, "softmax-none", 0)
    assert status.state == "failed"
    assert "SIGKILL" in status.reason
    assert run_status(training.root, "elu+1-none", 0).state == "done"

    again = Watcher()
    assert train(training, first, second, display=again) == {}
    assert again.events == [("softmax-none seed 0", "started"), ("softmax-none seed 0", "done")]
    steps = [row["step"] for row in metrics_rows(run_directory(training.root, "softmax-none", 0) / "metrics.jsonl")]
    assert steps.count(60) == 3  # train, validation and test, each once


def test_a_data_set_that_changed_is_not_trained_on(training):
    training.data_file.write_text("another text altogether\n" * 500)
    failures = train(training, Run("softmax-none", 0))
    assert "the data set changed" in failures[Run("softmax-none", 0)].reason


def test_an_exception_is_the_reason_and_its_traceback_is_in_the_log(training, directory):
    (directory / "metrics.jsonl").write_text("nonsense\n")
    failures = train(training, Run("softmax-none", 0))
    assert "metrics.jsonl, line 1 is not JSON" in failures[Run("softmax-none", 0)].reason
    assert "Traceback" in (directory / "log.txt").read_text()


def test_a_run_left_running_by_a_dead_run_or_without_its_test_figure_is_run_again(training, directory):
    write_json(directory / "status.json", {"state": "running", "reason": None})
    assert train(training, Run("softmax-none", 0)) == {}
    assert run_status(training.root, "softmax-none", 0).state == "done"
    metrics = directory / "metrics.jsonl"
    whole = metrics_rows(metrics)
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:-1]))
    assert train(training, Run("softmax-none", 0)) == {}
    assert metrics_rows(metrics) == whole


@pytest.mark.parametrize("seconds", [0.0, 1.5])
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
