"""Runs as Slurm's jobs, with made-up commands in the place of Slurm's; test_contract.py has what all launchers do."""

import os
import signal
import threading
import time

import psutil
import pytest

from experiments.objects import Needs, Run
from experiments.records.record import run_status
from experiments.run.plan import prepare_runs
from experiments.run.slurm import Slurm
from tests.experiments.run.conftest import train, training_of
from tests.made_up import Here, repeated_rows

RUNS = [Run("softmax-none", 0), Run("elu+1-none", 0)]
RESOURCES = Needs(cpu=1, minutes=30)


def metrics(training):
    return [repeated_rows(training.job(run).directory / "metrics.jsonl") for run in RUNS]


@pytest.mark.slow
def test_slurm_is_asked_for_what_a_run_needs_whatever_the_job_has_that_the_command_is_given_in(
    slurm, training, monkeypatch
):
    for name in ("SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE", "SLURM_CONF"):
        monkeypatch.setenv(name, "1")
    (slurm / "srun").write_text('#!/bin/sh\necho "$@" >> "$(dirname "$0")/words"\nexit 3\n')
    needs = RESOURCES._replace(cpu=2, memory=2.5)
    (started, _) = Slurm(needs=needs, workers=7).start(prepare_runs(training, RUNS))
    options = eval((slurm / "job-1000").read_text())
    asked = {"array": "0-1%2", "time": "30", "cpus-per-task": "2", "mem": "2560MB", "job-name": "out"}
    assert asked.items() <= options.items()
    assert (slurm / "variables-1000").read_text() == "SLURM_CONF"
    assert os.environ["SLURM_NTASKS"] == "1"
    while started.poll() is None:
        time.sleep(0.1)
    assert "its job ended as NODE_FAIL; see " in started.poll()
    assert "--cpus-per-task=2" in (slurm / "words").read_text(), "srun does not take it from the job"


@pytest.mark.slow
@pytest.mark.full
def test_a_job_whose_time_ends_stops_after_a_checkpoint_and_goes_on(slurm, tmp_path, text):
    config = {"steps": 300, "log_every": 5, "checkpoint_every": 1000}
    local, training = (training_of(tmp_path / name, text, **config) for name in ("local", "out"))
    assert train(local, RUNS, Here()) == {}
    rows = training.job(RUNS[0]).directory / "metrics.jsonl"

    def end_its_time():
        while not (rows.exists() and rows.stat().st_size):
            time.sleep(0.1)
        # Slurm sends it to the processes of the job's steps, and not to the script that starts these.
        for process in psutil.Process(int((slurm / "pid-1000_0").read_text())).children(recursive=True):
            process.send_signal(signal.SIGUSR2)

    threading.Thread(target=end_its_time, daemon=True).start()
    assert train(training, RUNS, Slurm(needs=RESOURCES)) == {}
    assert metrics(training) == metrics(local)
    assert [note.startswith("resumed at step") for note in run_status(training.root, *RUNS[0]).notes] == [True]


@pytest.mark.slow
@pytest.mark.full
def test_what_sbatch_refuses_is_one_line(slurm, training):
    (slurm / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2\nexit 1\n")
    with pytest.raises(ValueError, match=r"^Slurm took no jobs: sbatch: error: invalid partition specified: x$"):
        train(training, RUNS, Slurm(needs=RESOURCES))
