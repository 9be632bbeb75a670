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
from experiments.launch.local import launch_runs
from experiments.launch.worker import Job, Run
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

    def started(self, run):
        self.events.append((str(run), "started"))

    def advanced(self, run, step, loss, tokens_per_second):
        if run not in self.seen:
            self.seen.add(run)
            self.at_progress(run)

    def ended(self, run, state, reason):
        self.events.append((str(run), state))


@pytest.fixture
def job(tmp_path):
    text = tmp_path / "text"
    text.write_text("to be or not to be\n" * 500)
    return Job(tmp_path / "out", CONFIG, None, text, load_corpus("text", None, text).sha256, "cpu")


def kill_workers():
    """SIGKILL the runs' processes, as the kernel does when memory runs out; they are the fork server's children."""
    for process in psutil.Process().children(recursive=True):
        if process.ppid() != os.getpid():
            process.kill()


def test_a_killed_process_is_a_failed_run_with_a_reason_and_the_next_run_repeats_it(job):
    first, second = Run("softmax-none", 0), Run("elu+1-none", 0)
    killed = Watcher(at_progress=lambda run: kill_workers() if run == first else None)
    failures = launch_runs(job, [first, second], 1, killed)
    assert list(failures) == [first]
    status = run_status(job.root, "softmax-none", 0)
    assert status["state"] == "failed"
    assert "SIGKILL" in status["reason"]
    assert run_status(job.root, "elu+1-none", 0).state == "done"

    again = Watcher()
    assert launch_runs(job, [first, second], 1, again) == {}
    assert again.events == [("softmax-none seed 0", "started"), ("softmax-none seed 0", "done")]
    steps = [row["step"] for row in metrics_rows(run_directory(job.root, "softmax-none", 0) / "metrics.jsonl")]
    assert steps.count(60) == 3  # train, validation and test, each once


def test_a_data_set_that_changed_is_not_trained_on(job):
    job.data_file.write_text("another text altogether\n" * 500)
    failures = launch_runs(job, [Run("softmax-none", 0)], 1, Watcher())
    assert "the data set changed" in failures[Run("softmax-none", 0)].reason


def test_an_exception_is_the_reason_and_its_traceback_is_in_the_log(job):
    directory = run_directory(job.root, "softmax-none", 0)
    directory.mkdir(parents=True)
    (directory / "metrics.jsonl").write_text("nonsense\n")
    failures = launch_runs(job, [Run("softmax-none", 0)], 1, Watcher())
    assert "metrics.jsonl, line 1 is not JSON" in failures[Run("softmax-none", 0)].reason
    assert "Traceback" in (directory / "log.txt").read_text()


def test_a_run_left_running_by_a_dead_run_is_run_again(job):
    directory = run_directory(job.root, "softmax-none", 0)
    directory.mkdir(parents=True)
    write_json(directory / "status.json", {"state": "running", "reason": None})
    assert launch_runs(job, [Run("softmax-none", 0)], 1, Watcher()) == {}
    assert run_status(job.root, "softmax-none", 0).state == "done"


def test_a_done_run_without_its_test_figure_is_run_again(job):
    run = Run("softmax-none", 0)
    assert launch_runs(job, [run], 1, Watcher()) == {}
    metrics = run_directory(job.root, run.variant, run.seed) / "metrics.jsonl"
    whole = metrics_rows(metrics)
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:-1]))
    assert launch_runs(job, [run], 1, Watcher()) == {}
    assert metrics_rows(metrics) == whole


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.5])
def test_a_group_that_is_told_to_stop_while_its_first_run_starts_stops_cleanly(tmp_path, job, seconds):
    out = tmp_path / "out"
    arguments = ["--preset", "smoke", "--data-file", str(job.data_file), "--variants", "softmax-none"]
    command = [sys.executable, "-m", "experiments", "run", "convergence", *arguments, "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--steps", "100000"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (out / "comparison.json").exists():
        assert process.poll() is None
        time.sleep(0.001)
    time.sleep(seconds)  # the fork server starts, and imports PyTorch for a while
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert errors == ""
    assert process.returncode == 130
    assert "the same command goes on from the last checkpoints" in output
