"""Runs on a real Ray cluster of three nodes on this machine; what befalls one of them befalls no run."""

import re
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from experiments.objects import Needs, Run
from experiments.records.record import run_directory, run_status
from experiments.run.loop import Started, follow
from experiments.run.plan import prepare_runs
from experiments.run.ray import Ray
from tests.experiments.run.conftest import PROJECT, may_hide, ray_variables
from tests.made_up import repeated_rows

PATIENCE = 900
VARIANTS = ("softmax-none", "elu+1-rope-after", "favor+-rope-after")


def test_what_ray_has_not_is_refused(monkeypatch):
    monkeypatch.setattr("experiments.run.ray.find_spec", lambda name: object())
    with pytest.raises(ValueError, match="minutes"):
        Ray(needs=Needs(minutes=5))
    monkeypatch.setattr("experiments.run.ray.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"give pip install .*\[ray\]"):
        Ray()


def test_that_a_run_was_begun_again_on_another_machine_is_told(training, monkeypatch):
    """As Ray does without a word when a node is lost."""
    monkeypatch.setattr("experiments.run.loop.LOOK_ELSEWHERE", 0.01)
    (job,) = prepare_runs(training, [Run("softmax-none", 0)])
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
    told = [event for event in follow([job], launcher) if isinstance(event, Started)]
    assert told == [Started(job.run), Started(job.run, lost="process 7 on one")]


class Comparison:
    """A command that makes a comparison, and what it printed."""

    def __init__(self, out, text, *options, seeds, steps=150, checkpoint_every=10, **variables):
        self.out, self.log = out, out.with_suffix(".log")
        self.runs = [Run(variant, seed) for variant in VARIANTS for seed in range(seeds)]
        self.command = [sys.executable, "-m", "experiments", "run", "convergence", "--preset", "smoke", "--out", out]
        self.command += ["--variants", ",".join(VARIANTS), "--seeds", str(seeds), "--steps", str(steps)]
        self.command += ["--checkpoint-every", str(checkpoint_every), "--evaluate-every", "50", "--data-file", text]
        self.command += options
        self.environment = ray_variables(**variables)

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=PROJECT, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        return self

    def finish(self):
        assert self.start().process.wait(PATIENCE) == 0, self.log.read_text()
        return self.results()

    def wait_until(self, condition):
        deadline = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return found

    def directory(self, run):
        return run_directory(self.out, *run)

    def checkpoints(self, run):
        return [path for path in (self.directory(run) / "checkpoint").glob("step*/manifest.json")]

    def results(self):
        assert [run_status(self.out, *run).state for run in self.runs] == ["done"] * len(self.runs)
        found = {}
        for run in self.runs:
            (weights, *_) = sorted((self.directory(run) / "checkpoint").glob("step*/model.safetensors"), reverse=True)
            found[run] = repeated_rows(self.directory(run) / "metrics.jsonl"), weights.read_bytes()
        return found


@pytest.mark.slow
@pytest.mark.full
def test_a_node_that_is_killed_costs_no_run(cluster, tmp_path, text):
    local = Comparison(tmp_path / "local", text, seeds=4).finish()
    ray = Comparison(tmp_path / "ray", text, "--launcher", "ray", seeds=4, RAY_ADDRESS=cluster.address).start()
    victim = cluster.raylets[2]

    def trained_there():
        """A run of the node that is to be killed, and its process, when it has a checkpoint and others are done."""
        told = ray.log.read_text()
        there = {process.pid: process for process in victim.children(recursive=True)}
        for run in ray.runs if told.count(": done") >= 2 else []:
            log = ray.directory(run) / "log.txt"
            pids = re.findall(r"process (\d+):", log.read_text()) if log.exists() else []
            if pids and int(pids[-1]) in there and ray.checkpoints(run) and f"{run}: done" not in told:
                return run, there[int(pids[-1])]
        return None

    ray.wait_until(lambda: ray.log.read_text().count(": done") >= 1)
    command = [sys.executable, "-m", "experiments", "watch", ray.out, "--once"]
    shown = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    assert re.search(r"\d+ done, .*\d+ running", " ".join(shown.split())), shown
    run, orphan = ray.wait_until(trained_there)
    victim.kill()
    assert psutil.wait_procs([orphan], timeout=60)[1] == [], "it has not noticed"
    assert ray.process.wait(PATIENCE) == 0, ray.log.read_text()
    told = ray.log.read_text()
    for each in ray.runs:
        assert told.count(f"{each}: started") == told.count(f"{each}: done") == 1
    assert f"{run}: begun again where there is room, for its process " in told
    assert any(note.startswith("resumed at step") for note in run_status(ray.out, *run).notes)
    assert ray.results() == local
    assert [path for path in ray.out.rglob(".*") if path.name != ".lock"] == []


@pytest.mark.slow
@pytest.mark.full
def test_a_machine_that_does_not_see_the_directory_is_named(cluster, tmp_path, text):
    if not may_hide():
        pytest.skip("this process may not give another a file system of its own (unshare --mount)")
    ray = Comparison(cluster.hidden / "out", text, "--launcher", "ray", seeds=1, RAY_ADDRESS=cluster.address).start()
    assert ray.process.wait(PATIENCE) == 1
    assert "does not see its directory; Ray needs one that all machines see" in ray.log.read_text()


@pytest.mark.slow
@pytest.mark.full
def test_what_trackers_read_from_variables_reaches_the_runs(cluster, tmp_path, text):
    pytest.importorskip("trackio", reason='trackio is not installed: pip install -e ".[trackers]"')
    variables = {"RAY_ADDRESS": cluster.address, "TRACKIO_DIR": str(tmp_path / "told")}
    options = "--launcher", "ray", "--tracker", "trackio"
    Comparison(tmp_path / "out", text, *options, seeds=1, steps=10, **variables).finish()
    assert (tmp_path / "told/out.db").exists()


@pytest.mark.slow
@pytest.mark.full
def test_without_a_cluster_it_says_so_in_one_line(tmp_path, text):
    pytest.importorskip("ray", reason='Ray is not installed: pip install -e ".[ray]"')
    for number, address in enumerate(("nonsense", "auto")):
        ray = Comparison(tmp_path / str(number), text, "--launcher", "ray", seeds=1, RAY_ADDRESS=address).start()
        assert ray.process.wait(PATIENCE) == 1
        last = ray.log.read_text().splitlines()[-1]
        assert last.startswith(f"error: ValueError: no Ray cluster answers (RAY_ADDRESS is '{address}'"), last


@pytest.mark.slow
@pytest.mark.full
def test_a_run_that_no_node_has_room_for_is_refused(cluster, tmp_path, text):
    options = "--launcher", "ray", "--resources", "cpu=1,gpu=0.5"
    ray = Comparison(tmp_path / "out", text, *options, seeds=1, RAY_ADDRESS=cluster.address).start()
    assert ray.process.wait(PATIENCE) == 1
    assert "no machine of the Ray cluster has CPU 1, GPU 0.5 for a run; change --resources" in ray.log.read_text()
