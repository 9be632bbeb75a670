import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from experiments.data.corpus import load_corpus
from experiments.launch.local import run_cells
from experiments.launch.worker import Cell, Job
from experiments.presets import PRESETS
from experiments.records.record import cell_directory, cell_status, read_metrics, write_json

PROJECT = Path(__file__).parents[3]
CONFIG = dataclasses.replace(PRESETS["smoke"]().config, steps=60, data="text")


class Watcher:
    """Notes what happens, and does something at the first progress of each cell."""

    def __init__(self, at_progress=lambda cell: None):
        self.events = []
        self.at_progress = at_progress
        self.seen = set()

    def started(self, cell):
        self.events.append((str(cell), "started"))

    def advanced(self, cell, step, loss, tokens_per_second):
        if cell not in self.seen:
            self.seen.add(cell)
            self.at_progress(cell)

    def ended(self, cell, state, reason):
        self.events.append((str(cell), state))


@pytest.fixture
def job(tmp_path):
    text = tmp_path / "text"
    text.write_text("to be or not to be\n" * 500)
    return Job(tmp_path / "out", CONFIG, None, text, load_corpus("text", None, text).sha256, "cpu")


def kill_workers():
    """SIGKILL the cells' processes, as the kernel does when memory runs out; they are the fork server's children."""
    for process in psutil.Process().children(recursive=True):
        if process.ppid() != os.getpid():
            process.kill()


def test_a_killed_process_is_a_failed_cell_with_a_reason_and_the_next_run_repeats_it(job):
    first, second = Cell("softmax-none", 0), Cell("elu+1-none", 0)
    killed = Watcher(at_progress=lambda cell: kill_workers() if cell == first else None)
    failures = run_cells(job, [first, second], 1, killed)
    assert list(failures) == [first]
    status = cell_status(job.root, "softmax-none", 0)
    assert status["state"] == "failed"
    assert "SIGKILL" in status["reason"]
    assert cell_status(job.root, "elu+1-none", 0)["state"] == "done"

    again = Watcher()
    assert run_cells(job, [first, second], 1, again) == {}
    assert again.events == [("softmax-none seed 0", "started"), ("softmax-none seed 0", "done")]
    steps = [row["step"] for row in read_metrics(cell_directory(job.root, "softmax-none", 0) / "metrics.jsonl")]
    assert steps.count(60) == 3  # train, validation and test, each once


def test_a_data_set_that_changed_is_not_trained_on(job):
    job.data_file.write_text("another text altogether\n" * 500)
    failures = run_cells(job, [Cell("softmax-none", 0)], 1, Watcher())
    assert "the data set changed" in failures[Cell("softmax-none", 0)].reason


def test_an_exception_is_the_reason_and_its_traceback_is_in_the_log(job):
    directory = cell_directory(job.root, "softmax-none", 0)
    directory.mkdir(parents=True)
    (directory / "metrics.jsonl").write_text("nonsense\n")
    failures = run_cells(job, [Cell("softmax-none", 0)], 1, Watcher())
    assert "metrics.jsonl, line 1 is not JSON" in failures[Cell("softmax-none", 0)].reason
    assert "Traceback" in (directory / "log.txt").read_text()


def test_a_cell_left_running_by_a_dead_run_is_run_again(job):
    directory = cell_directory(job.root, "softmax-none", 0)
    directory.mkdir(parents=True)
    write_json(directory / "status.json", {"state": "running", "reason": None})
    assert run_cells(job, [Cell("softmax-none", 0)], 1, Watcher()) == {}
    assert cell_status(job.root, "softmax-none", 0)["state"] == "done"


def test_a_done_cell_without_its_test_figure_is_run_again(job):
    cell = Cell("softmax-none", 0)
    assert run_cells(job, [cell], 1, Watcher()) == {}
    metrics = cell_directory(job.root, cell.variant, cell.seed) / "metrics.jsonl"
    whole = read_metrics(metrics)
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:-1]))
    assert run_cells(job, [cell], 1, Watcher()) == {}
    assert read_metrics(metrics) == whole


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.5])
def test_a_group_that_is_told_to_stop_while_its_first_cell_starts_stops_cleanly(tmp_path, job, seconds):
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
