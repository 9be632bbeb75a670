"""Runs as Slurm's jobs, with made-up commands in the place of Slurm's; test_contract.py has what all launchers do."""

import os
import signal
import threading
import time

import psutil
import pytest

from experiments.objects import Needs, Run
from experiments.records.record import run_status
from experiments.run.loop import Ended, Started, follow
from experiments.run.plan import prepare_runs
from experiments.run.slurm import Slurm
from tests.experiments.run.conftest import train, training_of
from tests.made_up import repeated_rows

RUNS = [Run("softmax-none", 0), Run("elu+1-none", 0)]
RESOURCES = Needs(cpu=1, minutes=30)


@pytest.fixture
def training(tmp_path, text):
    return training_of(tmp_path / "out", text, steps=30, log_every=5, checkpoint_every=10)


def metrics(training):
    return [repeated_rows(training.job(run).directory / "metrics.jsonl") for run in RUNS]


@pytest.fixture
def submitit():
    return pytest.importorskip("submitit", reason='submitit is not installed: pip install -e ".[slurm]"')


@pytest.mark.slow
@pytest.mark.full
def test_slurm_is_asked_for_what_a_run_needs(submitit, slurm, training):
    assert train(training, RUNS, Slurm(needs=RESOURCES._replace(cpu=2, memory=2.5), workers=7)) == {}
    (told,) = slurm.glob("job-*")
    options = eval(told.read_text())
    asked = {"array": "0-1%2", "time": "30", "cpus-per-task": "2", "mem": "2560MB", "job-name": "out"}
    assert asked.items() <= options.items()
    assert "--cpus-per-task=2" in (slurm / "srun-1000_0").read_text(), "srun does not take it from the job"


@pytest.mark.slow
@pytest.mark.full
def test_a_job_that_is_killed_without_a_word_fails_and_the_others_go_on(submitit, slurm, training):
    events = []
    for event in follow(training, RUNS, Slurm(needs=RESOURCES)):
        events.append(event)
        if event == Started(RUNS[0]):
            os.killpg(int((slurm / "pid-1000_0").read_text()), signal.SIGKILL)
    ended = {event.run: event for event in events if isinstance(event, Ended)}
    assert ended[RUNS[0]].state == "failed"
    assert "its job ended as NODE_FAIL; see " in ended[RUNS[0]].reason
    assert ended[RUNS[1]].state == "done"


@pytest.mark.slow
@pytest.mark.full
def test_a_job_whose_time_ends_stops_after_a_checkpoint_and_goes_on(submitit, slurm, tmp_path, text):
    config = {"steps": 300, "log_every": 5, "checkpoint_every": 1000}
    local, training = (training_of(tmp_path / name, text, **config) for name in ("local", "out"))
    assert train(local, RUNS) == {}
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
def test_what_sbatch_refuses_is_one_line(submitit, slurm, training):
    (slurm / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2\nexit 1\n")
    with pytest.raises(ValueError, match=r"^Slurm took no jobs: sbatch: error: invalid partition specified: x$"):
        train(training, RUNS, Slurm(needs=RESOURCES))


@pytest.mark.slow
def test_the_job_that_a_command_is_given_in_says_nothing_of_those_it_submits(submitit, slurm, training, monkeypatch):
    for name in ("SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE", "SLURM_CONF"):
        monkeypatch.setenv(name, "1")
    (slurm / "srun").write_text("#!/bin/sh\nexit 3\n")
    jobs = prepare_runs(training, RUNS)
    (started, _) = Slurm(needs=RESOURCES).start(jobs)
    assert (slurm / "variables-1000").read_text() == "SLURM_CONF"
    assert os.environ["SLURM_NTASKS"] == "1"
    while started.poll() is None:
        time.sleep(0.1)
    assert "its job ended as NODE_FAIL; see " in started.poll()
