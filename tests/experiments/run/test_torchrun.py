"""One run that torchrun, or --nproc, has several processes train; and what happens when one of them is killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil
import pytest

from experiments.cli import main
from experiments.objects import Run
from experiments.records.lock import run_lease
from experiments.records.record import run_status
from experiments.run.peers import check_can_share
from experiments.run.plan import prepare_runs
from tests.experiments.run.conftest import PROJECT, train, training_of
from tests.made_up import Here, repeated_rows

RUN = Run("favor+-rope-after", 0)
CONFIG = {
    "precision": "float64",
    "batch_size": 4,
    "steps": 50,
    "log_every": 1,
    "evaluate_every": 20,
    "checkpoint_every": 20,
    "redraw_every": 7,
}
PATIENCE = 900


def trained_alone(root, text, **options):
    """The directory of a run that this process has trained."""
    training = training_of(root, text, **CONFIG | options)
    assert train(training, [RUN], Here()) == {}
    return training.job(RUN).directory


def prepare(root, text, nproc=1, **options):
    """A run that is ready to be trained."""
    (job,) = prepare_runs(training_of(root, text, nproc, **CONFIG | options), [RUN])
    return job


@pytest.fixture(scope="module")
def alone(tmp_path_factory, text):
    return trained_alone(tmp_path_factory.mktemp("alone") / "out", text)


def torchrun(job, restarts=0):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(restarts), *job.command[1:]]
    return subprocess.Popen(command, cwd=PROJECT)


def wait_for_step(directory, step):
    deadline, path = time.monotonic() + PATIENCE, directory / "metrics.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") <= step:  # of every step there is a row
        assert time.monotonic() < deadline
        time.sleep(0.2)


def with_rank(process, rank):
    """Of all processes below one, that of a rank, once it is there."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for each in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):  # it has just ended
                if each.environ().get("RANK") == str(rank):
                    return each
        time.sleep(0.05)
    raise AssertionError(f"there is no process of rank {rank}")


def has_ended(process):
    with suppress(psutil.TimeoutExpired):
        process.wait(30)
    return not process.is_running()


def assert_same_curve(one, other):
    rows = [repeated_rows(directory / "metrics.jsonl") for directory in (one, other)]
    assert len(rows[0]) == len(rows[1])
    for row, expected in zip(*rows, strict=True):
        assert row.pop("split") == expected.pop("split")
        assert row == pytest.approx(expected, rel=1e-9)


def test_what_several_processes_cannot_share_is_refused(capsys, tmp_path, monkeypatch):
    command = ["run", "convergence", "--preset", "smoke", "--data", "synthetic", "--out", str(tmp_path / "out")]
    for options, said in (
        ("--batch-size 4 --nproc 3", "--batch-size is 4, which 3 processes cannot share evenly"),
        ("--shard", "--shard is given, and --nproc is 1; give --nproc 2 or more"),
    ):
        assert main([*command, *options.split()]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("experiments.run.peers.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"accelerate; give pip install .*\[distributed\]"):
        check_can_share(4, 2)
    check_can_share(4, 1)


@pytest.mark.slow
@pytest.mark.parametrize("by", [pytest.param("torchrun", marks=pytest.mark.full), "nproc"])
def test_several_processes_give_the_loss_curve_of_one(tmp_path, text, alone, by):
    job = prepare(tmp_path / "out", text, nproc=2 if by == "nproc" else 4)  # torchrun starts as many as it was told
    process = torchrun(job) if by == "torchrun" else subprocess.Popen(job.command, cwd=PROJECT)
    assert process.wait(PATIENCE) == 0
    assert run_status(job.root, *RUN).state == "done"
    assert_same_curve(job.directory, alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [pytest.param(-1, id="while the others start", marks=pytest.mark.full), pytest.param(5, id="while they train")],
)
def test_a_killed_first_process_is_told_of_and_the_others_end(tmp_path, text, step):
    training = training_of(tmp_path / "out", text, 2, **CONFIG | {"steps": 2000})
    others = []

    def kill():
        others.append(with_rank(psutil.Process(), 1))
        if step > 0:
            wait_for_step(training.job(RUN).directory, step)
        os.kill(run_lease(training.job(RUN).directory).pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    ended = train(training, [RUN])
    killer.join()
    assert (ended[RUN].state, "killed (SIGKILL)" in ended[RUN].reason) == ("failed", True)
    assert run_status(training.root, *RUN).state == "failed"
    assert has_ended(others[0])


@pytest.mark.slow
def test_a_terminal_s_signal_to_processes_that_start_stops_the_run(tmp_path, text):
    job = prepare(tmp_path / "out", text, nproc=2, steps=2000)
    process = subprocess.Popen([*job.command, "--plugin=calendar"], cwd=PROJECT, start_new_session=True)
    other = with_rank(process, 1)
    assert other.cmdline()[-1] == "--plugin=calendar"
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert run_status(job.root, *RUN).state == "queued"
    assert has_ended(other)


@pytest.fixture(scope="module")
def longer(tmp_path_factory, text):
    return trained_alone(tmp_path_factory.mktemp("longer") / "out", text, steps=200)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(("rank", "restarts", "state"), [(1, 1, "done"), (0, 0, "running"), (1, 0, "failed")])
def test_a_killed_process_ends_the_run_unless_torchrun_restarts_it_and_one_process_goes_on(
    tmp_path, text, longer, rank, restarts, state
):
    """The first one has no time to say so."""
    job = prepare(tmp_path / "out", text, steps=200)
    process = torchrun(job, restarts)
    wait_for_step(job.directory, 45)
    workers = [with_rank(process, each) for each in (0, 1)]
    workers[rank].kill()
    assert process.wait(PATIENCE) == 1 - restarts
    assert not any(worker.is_running() for worker in workers)
    status = run_status(job.root, *RUN)
    assert status.state == state
    assert state != "failed" or "another of the processes" in status.reason
    assert subprocess.run(job.command, cwd=PROJECT, timeout=PATIENCE).returncode == 0
    assert any(note.startswith("resumed at step") for note in run_status(job.root, *RUN).notes)
    assert_same_curve(job.directory, longer)


@pytest.mark.slow
@pytest.mark.full
def test_a_stopped_torchrun_leaves_a_checkpoint(tmp_path, text):
    job = prepare(tmp_path / "out", text, steps=2000)
    process = torchrun(job)
    wait_for_step(job.directory, 5)
    process.terminate()
    assert process.wait(PATIENCE) != 0
    status = run_status(job.root, *RUN)
    assert (status.state, status.reason.startswith("stopped at step")) == ("queued", True)
    assert [*(job.directory / "checkpoint").glob("step*")]
