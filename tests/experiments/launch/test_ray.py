"""Runs on a real Ray cluster of three nodes on this machine; what befalls one of them befalls no run."""

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from experiments.launch.gathering import Files, Gatherer, files_of, store
from experiments.launch.launcher import Job, Run
from experiments.launch.ray import Ray
from experiments.launch.resources import Resources
from experiments.records.record import run_directory, run_status
from tests.made_up import repeated_rows

PROJECT = Path(__file__).parents[3]
PATIENCE = 900
VARIANTS = ("softmax-none", "elu+1-rope-after", "favor+-rope-after")


def test_what_ray_has_not_is_refused(monkeypatch):
    monkeypatch.setattr("experiments.launch.ray.find_spec", lambda name: object())
    with pytest.raises(ValueError, match="minutes"):
        Ray(resources=Resources(minutes=5))
    monkeypatch.setattr("experiments.launch.ray.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"give pip install .*\[ray\]"):
        Ray()


@pytest.fixture
def job(tmp_path):
    job = Job(Run("a/b", 0), run_directory(tmp_path / "here", "a/b", 0))
    (job.directory / "checkpoint/step1").mkdir(parents=True)
    (job.root / "tokenizer.json").write_text("tokens")
    (job.directory / ".lock").touch()
    (job.directory / "metrics.jsonl").write_text("1\n")
    (job.directory / "checkpoint/step1/manifest.json").write_text("first")
    return job


def contents(root):
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_what_is_sent_and_gathered_is_the_run_as_it_is_there(job, tmp_path):
    gatherer, there = Gatherer(job), tmp_path / "there"
    assert gatherer.has_new_checkpoint
    sent = files_of(job)
    gatherer.changed()
    assert not gatherer.has_new_checkpoint
    store(sent, there, there)
    expected = contents(job.root)
    del expected["a/b/seed0/.lock"]
    assert contents(there) == expected
    (job.directory / "checkpoint/step2").mkdir()
    (job.directory / "checkpoint/step2/manifest.json").write_text("second")
    shutil.rmtree(job.directory / "checkpoint/step1")
    assert gatherer.has_new_checkpoint
    changed = gatherer.changed()
    assert [*changed.contents] == ["a/b/seed0/checkpoint/step2/manifest.json"], "the metrics are the same"
    store(changed, there, there / "a/b/seed0")
    assert contents(there) == {name: text for name, text in contents(job.root).items() if name[-5:] != ".lock"}


@pytest.mark.parametrize("name", ["a/b/seed1/x", "a/b/seed0/../x", "/tmp/x", "x"])
def test_nothing_is_written_outside_the_run_s_directory(job, tmp_path, name):
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="which is not in"):
        store(Files({"a/b/seed0/y": b"", name: b""}, frozenset()), job.root, job.directory)
    assert contents(tmp_path) == before


@dataclasses.dataclass
class Cluster:
    address: str
    hidden: Path
    """a directory that only the first node sees"""
    raylets: list[psutil.Process]
    """of the nodes; the first one is the head"""


def with_variables(**variables):
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # As if the machine were the cluster's alone: Ray's workers otherwise give way to everything else.
    return kept | {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"} | variables


def may_hide():
    """Whether this process may give others a file system of their own."""
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def cluster(tmp_path):
    pytest.importorskip("ray", reason='Ray is not installed: pip install -e ".[ray]"')
    place = Path(tempfile.mkdtemp(prefix="ray-"))  # a short path: sockets are in it
    hidden = tmp_path / "hidden"
    hidden.mkdir()

    def started():
        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.name() == "raylet" and str(place) in " ".join(process.cmdline()):
                    found.add(process)
        return found

    def start(*options, hide=False):
        before = started()
        command = [str(Path(sys.executable).with_name("ray")), "start", "--num-cpus=1", *options]
        if hide:
            script = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", script, str(hidden), *command]
        done = subprocess.run(command, env=with_variables(), cwd=PROJECT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (raylet,) = started() - before
        return raylet, done.stdout

    try:
        raylet, told = start("--head", "--port=0", "--include-dashboard=false", f"--temp-dir={place}")
        address = re.search(r"--address='([^']+)'", told)[1]
        raylets = [raylet]
        raylets += [start(f"--address={address}", hide=may_hide())[0] for _ in range(2)]
        yield Cluster(address, hidden, raylets)
    finally:
        for process in psutil.process_iter():  # `ray stop` would end other clusters too
            with contextlib.suppress(psutil.Error):
                if str(place) in " ".join(process.cmdline()):
                    process.kill()
        shutil.rmtree(place, ignore_errors=True)


class Comparison:
    """A command that makes a comparison, and what it printed."""

    def __init__(self, out, text, *options, seeds, steps=150, checkpoint_every=10, **variables):
        self.out, self.log = out, out.with_suffix(".log")
        self.runs = [Run(variant, seed) for variant in VARIANTS for seed in range(seeds)]
        self.command = [sys.executable, "-m", "experiments", "run", "convergence", "--preset", "smoke", "--out", out]
        self.command += ["--variants", ",".join(VARIANTS), "--seeds", str(seeds), "--steps", str(steps)]
        self.command += ["--checkpoint-every", str(checkpoint_every), "--evaluate-every", "50", "--data-file", text]
        self.command += options
        self.environment = with_variables(**variables)

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


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a text"
    path.write_text("".join(f"{n} bottles of beer on the wall, {n} bottles of beer\n" for n in range(500)))
    return path


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
    assert any(note.startswith("resumed at step") for note in run_status(ray.out, *run).notes)
    assert ray.results() == local
    assert [path for path in ray.out.rglob(".*") if path.name not in (".lock", ".owner")] == []


@pytest.mark.slow
@pytest.mark.full
def test_without_a_shared_directory_a_stopped_comparison_goes_on(cluster, tmp_path, text):
    if not may_hide():
        pytest.skip("this process may not give another a file system of its own (unshare --mount)")
    local = Comparison(tmp_path / "local", text, seeds=1, steps=400).finish()
    options = "--launcher", "ray", "--resources", "cpu=1,memory=0.5"
    ray = Comparison(cluster.hidden / "out", text, *options, seeds=1, steps=400, RAY_ADDRESS=cluster.address).start()
    ray.wait_until(lambda: all(map(ray.checkpoints, ray.runs)))
    logs = [ray.directory(run) / "log.txt" for run in ray.runs]
    ray.process.send_signal(signal.SIGINT)
    assert ray.process.wait(PATIENCE) == 130, ray.log.read_text()
    assert all(log.exists() for log in logs), "all that a run wrote is gathered"
    reasons = [run_status(ray.out, *run).reason for run in ray.runs]
    stopped_at = [int(reason.removeprefix("stopped at step ")) for reason in reasons]
    reached = [max(row["step"] for row in repeated_rows(ray.directory(run) / "metrics.jsonl")) for run in ray.runs]
    assert all(at < 400 for at in stopped_at)
    for run, at in zip(ray.runs, stopped_at, strict=True):
        assert (ray.directory(run) / f"checkpoint/step{at:08d}").is_dir()
    assert all(step <= at for step, at in zip(reached, stopped_at, strict=True))
    assert ray.finish() == local
    for run, at in zip(ray.runs, stopped_at, strict=True):
        assert f"resumed at step {at}" in run_status(ray.out, *run).notes


@pytest.mark.slow
@pytest.mark.full
def test_files_that_cannot_be_stored_at_a_stop_keep_no_other_run_from_it(cluster, tmp_path, text):
    if not may_hide():
        pytest.skip("this process may not give another a file system of its own (unshare --mount)")
    options = {"seeds": 1, "steps": 100_000, "checkpoint_every": 100_000, "RAY_ADDRESS": cluster.address}
    # Three runs on three nodes, of which the first sees the directory.
    ray = Comparison(cluster.hidden / "out", text, "--launcher", "ray", **options).start()
    ray.wait_until(lambda: all(f"{run}: started" in ray.log.read_text() for run in ray.runs))
    seen = ray.wait_until(lambda: [run for run in ray.runs if (ray.directory(run) / "metrics.jsonl").exists()])
    time.sleep(10)  # the other two, begun at the same time, take their first steps
    assert len(seen) == 1
    hidden = [run for run in ray.runs if run not in seen]
    shutil.rmtree(ray.directory(hidden[0]))
    ray.directory(hidden[0]).touch()
    ray.process.send_signal(signal.SIGINT)
    assert ray.process.wait(PATIENCE) == 130, ray.log.read_text()
    assert "Traceback" not in ray.log.read_text()
    for run in ray.runs:
        assert run == hidden[0] or ray.checkpoints(run)


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
