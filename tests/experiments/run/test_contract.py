"""What every launcher's runs do: they train, fail, stop, go on, and are killed where they are silent."""

import os
import signal
import threading
import time

import pytest

from experiments.objects import Needs, Run
from experiments.records.lock import holder_of
from experiments.records.record import run_status
from experiments.run.local import Local
from experiments.run.ray import Ray
from experiments.run.signals import Stopped
from experiments.run.slurm import Slurm
from tests.experiments.run.conftest import train, training_of
from tests.made_up import Here, repeated_rows

pytestmark = pytest.mark.slow
RUNS = [Run("softmax-none", 0), Run("elu+1-none", 0)]
STEPS = {"steps": 200, "log_every": 5, "checkpoint_every": 10, "evaluate_every": 100}
FULL = pytest.mark.full
RAY = FULL, pytest.mark.filterwarnings("default")  # what Ray warns of


@pytest.fixture(scope="module")
def workers():
    """A launcher whose processes have imported PyTorch when the second test asks for them."""
    return Local(workers=2)


@pytest.fixture(
    params=[
        "local",
        pytest.param("spawned", marks=FULL),
        pytest.param("ray", marks=RAY),
        pytest.param("slurm", marks=FULL),
    ]
)
def launcher(request, workers, monkeypatch):
    needs = Needs(cpu=1, minutes=None if request.param == "ray" else 30)
    if request.param == "ray":
        request.getfixturevalue("cluster")
        return Ray(needs=needs)
    if request.param == "slurm":
        request.getfixturevalue("slurm")
        return Slurm(needs=needs)
    if request.param == "spawned":
        monkeypatch.setattr("experiments.run.local.IMPORTED", [])
        return Local(workers=2)
    return workers


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, text):
    training = training_of(tmp_path_factory.mktemp("undisturbed") / "out", text, **STEPS)
    assert train(training, RUNS, Here()) == {}
    return metrics(training)


def metrics(training):
    return [repeated_rows(training.job(run).directory / "metrics.jsonl") for run in RUNS]


def once_it_trains(training, what):
    """Do something with the process of the first run when that has its first rows."""
    job = training.job(RUNS[0])

    def wait():
        rows = job.directory / "metrics.jsonl"
        while not (rows.exists() and rows.read_bytes().count(b"train")):
            time.sleep(0.01)
        what(int(holder_of(job.directory).split()[1]))

    threading.Thread(target=wait, daemon=True).start()


def check_failed_alone(training, failed, reason, undisturbed):
    assert [*failed] == RUNS[:1]
    status = run_status(training.root, *RUNS[0])
    assert status.state == "failed"
    assert status.reason.startswith(reason)
    assert run_status(training.root, *RUNS[1]).state == "done"
    assert train(training, RUNS) == {}
    assert metrics(training) == undisturbed


def test_a_run_that_is_killed_fails_and_goes_on(launcher, tmp_path, text, undisturbed):
    training = training_of(tmp_path / "out", text, **STEPS)
    once_it_trains(training, lambda process: os.kill(process, signal.SIGKILL))
    failed = train(training, RUNS, launcher)
    reason = "its process was killed (SIGKILL), as the system does when memory runs out"
    check_failed_alone(training, failed, reason, undisturbed)


def test_a_run_that_hangs_is_killed_and_goes_on(workers, tmp_path, text, undisturbed):
    training = training_of(tmp_path / "out", text, **STEPS)
    assert train(training_of(tmp_path / "first", text, steps=1), RUNS, workers) == {}  # PyTorch is imported
    once_it_trains(training, lambda process: os.kill(process, signal.SIGSTOP))
    failed = train(training, RUNS, workers, silence=15)
    check_failed_alone(training, failed, "no sign of life for 15 s after step", undisturbed)


def test_runs_that_are_stopped_leave_a_checkpoint_and_go_on(launcher, tmp_path, text, undisturbed):
    training = training_of(tmp_path / "out", text, **STEPS)
    once_it_trains(training, lambda process: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Stopped, match="SIGINT"):
        train(training, RUNS, launcher)
    status = run_status(training.root, *RUNS[0])
    assert (status.state, status.reason[:15]) == ("queued", "stopped at step")
    assert [*(training.job(RUNS[0]).directory / "checkpoint").glob("step*/manifest.json")]
    assert train(training, RUNS, launcher) == {}
    assert metrics(training) == undisturbed
    assert [run_status(training.root, *run).state for run in RUNS] == ["done", "done"]


def test_an_exception_is_the_reason_and_its_traceback_is_in_the_log(launcher, tmp_path, text):
    training = training_of(tmp_path / "out", text, **STEPS | {"steps": 10})
    directory = training.job(RUNS[0]).directory
    directory.mkdir(parents=True)
    (directory / "metrics.jsonl").write_text("nonsense\n")
    assert "metrics.jsonl, line 1 is not JSON" in train(training, RUNS, launcher)[RUNS[0]].reason
    assert "Traceback" in (directory / "log.txt").read_text()
    assert run_status(training.root, *RUNS[1]).state == "done"
