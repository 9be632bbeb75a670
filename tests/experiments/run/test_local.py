"""Runs of this machine's processes."""

import dataclasses
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from experiments.objects import Run
from experiments.records.files import write_json
from experiments.records.record import run_status
from experiments.run.local import Local, own_gpus
from tests.experiments.run.conftest import PROJECT, train, training_of
from tests.made_up import Here, metrics_rows, repeated_rows

RUN = Run("softmax-none", 0)


def test_a_data_set_that_changed_is_not_trained_on(training, tmp_path):
    changed = tmp_path / "text"
    changed.write_text("another text altogether\n" * 500)
    changed_training = dataclasses.replace(training, data_file=changed)
    assert "the data set changed" in train(changed_training, [RUN], Here())[RUN].reason


def test_a_run_left_running_by_a_dead_run_or_without_its_test_figure_is_run_again(training):
    directory = training.job(RUN).directory
    directory.mkdir(parents=True)
    write_json(directory / "status.json", {"state": "running", "reason": None})
    assert train(training, [RUN], Here()) == {}
    assert run_status(training.root, *RUN).state == "done"
    metrics = directory / "metrics.jsonl"
    whole = metrics_rows(metrics)
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:-1]))
    assert train(training, [RUN], Here()) == {}
    assert metrics_rows(metrics) == whole


def test_runs_start_wherever_this_process_was_started_with_its_environment_and_give_what_it_gives(
    training, text, monkeypatch
):
    here = training_of(training.root.with_name("here"), text, steps=training.config.steps)
    assert train(here, [RUN], Here()) == {}
    # The fork server of multiprocessing could not be used by any of these.
    monkeypatch.setattr(tempfile, "tempdir", str(training.root.parent / ("long" * 30)))
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    monkeypatch.setenv("LINEAR_ROPE_NATIVE", "0")
    assert train(training, [RUN]) == {}
    assert run_status(training.root, *RUN).trained_with[0].kernel == "PyTorch"
    rows = [repeated_rows(each.job(RUN).directory / "metrics.jsonl") for each in (training, here)]
    assert rows[0] == rows[1]


def test_how_a_run_ended_is_read_also_if_its_worker_ends_right_after(training, monkeypatch):
    read, write = os.pipe()

    class Ending:
        stdin, stdout = io.BytesIO(), io.FileIO(read)

        def __init__(self, *arguments, **options):
            """It is not started."""

        def poll(self):
            os.write(write, b"-9\n")
            return 0

        def __exit__(self, *error):
            self.stdout.close()
            os.close(write)

    monkeypatch.setattr("experiments.run.local.subprocess.Popen", Ending)
    (worker,) = Local().start([training.job(RUN)])
    assert worker.poll() == -9


def test_a_run_that_cannot_begin_ends_at_once_and_the_worker_goes_on():
    code = (
        "import atexit; from experiments.run import local; atexit.register(print, 'the worker ended'); "
        "local.at_the_end_of_input = None; local.serve([])"
    )
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            [sys.executable, "-c", code], input=f'"{place}"\n' * 2, capture_output=True, text=True, check=False
        )
        assert done.stdout == "1\n1\nthe worker ended\n"
        log = (Path(place) / "log.txt").read_text()
        assert (log.count("Traceback"), "the worker ended" in log) == (2, False)


@pytest.mark.parametrize(("nproc", "gpus"), [(1, ["4", "7", "4"]), (2, ["4,7", "4,7", "4,7"])])
def test_runs_at_a_time_have_gpus_of_their_own(monkeypatch, nproc, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert [own_gpus(place, nproc)["CUDA_VISIBLE_DEVICES"] for place in range(3)] == gpus


@pytest.mark.slow
def test_a_group_that_is_told_to_stop_while_its_first_run_starts_stops_cleanly(tmp_path, training):
    out = tmp_path / "out"
    arguments = ["--preset", "smoke", "--data-file", str(training.data_file), "--variants", "softmax-none"]
    command = [sys.executable, "-m", "experiments", "run", "convergence", *arguments, "--out", str(out)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen([*command, "--steps", "100000"], cwd=PROJECT, **pipes)
    while not (out / "comparison.json").exists():
        assert process.poll() is None
        time.sleep(0.001)
    time.sleep(1.5)  # the parent of runs starts, and imports PyTorch for a while
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert errors == ""
    assert process.returncode == 130
    assert "the same command goes on from the last checkpoints" in output
