"""Runs on a real Ray cluster of three nodes on this machine; what befalls one of them befalls no run."""

import dataclasses
import io
import threading
import time
from types import SimpleNamespace

import pytest

from experiments.objects import Needs, Run
from experiments.records.lock import holder_of
from experiments.records.record import run_status
from experiments.run.loop import Started, follow
from experiments.run.ray import NOT_SEEN, Ray, train_there
from tests.experiments.run.conftest import train, training_of
from tests.made_up import repeated_rows

pytestmark = pytest.mark.filterwarnings("default")  # what Ray warns of
RUNS = [Run(name, seed) for name in ("softmax-none", "elu+1-rope-after", "favor+-rope-after") for seed in range(4)]


def test_that_a_run_was_begun_again_on_another_machine_is_told(training, monkeypatch):
    """As Ray does without a word when a node is lost."""
    monkeypatch.setattr("experiments.run.loop.LOOK_ELSEWHERE", 0.01)
    job = training.job(Run("softmax-none", 0))
    machines = ["one", "another", "another"]

    def poll():
        if not machines:
            return 0
        marker = f"filelock/2\npid=7\nhost={machines.pop(0)}\nmode=lease\ntoken=ab\nduration=60.0\n"
        (job.directory / ".lease").write_text(marker)
        (job.directory / "status.json").write_text('{"state": "done"}' + "\n" * len(machines))
        return None

    task = SimpleNamespace(poll=poll, stop=None)
    launcher = SimpleNamespace(elsewhere=True, room=1, start=lambda jobs: [task])
    told = [event for event in follow(training, [job.run], launcher) if isinstance(event, Started)]
    assert told == [Started(job.run), Started(job.run, lost="process 7 on one")]


@pytest.mark.slow
@pytest.mark.full
def test_a_node_that_is_killed_costs_no_run(cluster, tmp_path, text):
    config = {"steps": 150, "log_every": 5, "checkpoint_every": 10, "evaluate_every": 50}
    local, training = (training_of(tmp_path / name, text, **config) for name in ("local", "ray"))
    assert train(local, RUNS) == {}
    victim, lost, output = cluster[2], list[Run](), io.StringIO()

    def kill_once_it_trains():
        while not lost:
            there = {f"process {process.pid} on " for process in victim.children(recursive=True)}
            for run in RUNS:
                directory = training.job(run).directory
                holder = (holder_of(directory) or "").partition(" on ")
                if "".join(holder[:2]) in there and [*directory.glob("checkpoint/step*/manifest.json")]:
                    lost.append(run)
            time.sleep(0.05)
        victim.kill()

    threading.Thread(target=kill_once_it_trains, daemon=True).start()
    assert train(training, RUNS, Ray(), output=output) == {}
    told = output.getvalue()
    for run in RUNS:
        assert told.count(f"{run}: started") == told.count(f"{run}: done") == 1
    assert f"{lost[0]}: begun again where there is room, for its process " in told
    assert any(note.startswith("resumed at step") for note in run_status(training.root, *lost[0]).notes)
    for run in RUNS:
        rows = [repeated_rows(each.job(run).directory / "metrics.jsonl") for each in (local, training)]
        assert rows[0] == rows[1]
    assert [*training.root.rglob(".*")] == []


def test_a_machine_that_does_not_see_the_directory_is_named(tmp_path):
    assert train_there([], str(tmp_path / "nowhere"), str(tmp_path)) == NOT_SEEN


@pytest.mark.slow
@pytest.mark.full
def test_runs_have_the_room_that_they_need_and_the_variables_of_trackers(cluster, tmp_path, training, monkeypatch):
    with pytest.raises(ValueError, match=r"no machine of the Ray cluster has CPU 1, GPU 0\.5 for a run; change --res"):
        train(training, RUNS, Ray(needs=Needs(cpu=1, gpu=0.5)))
    pytest.importorskip("trackio", reason='trackio is not installed: pip install -e ".[trackers]"')
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "told"))
    assert train(dataclasses.replace(training, trackers=["trackio"]), RUNS[:1], Ray()) == {}
    assert (tmp_path / "told/out.db").exists()


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("address", ["nonsense", "auto"])
def test_without_a_cluster_it_says_so_in_one_line(training, monkeypatch, address):
    pytest.importorskip("ray", reason='Ray is not installed: pip install -e ".[ray]"')
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ValueError, match=rf"^no Ray cluster answers \(RAY_ADDRESS is '{address}'[^\n]*$"):
        train(training, RUNS, Ray())
