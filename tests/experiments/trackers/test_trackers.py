"""Trackers are told what is on record, once, also by a run that goes on; and one that fails ends no run."""

import dataclasses
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.data.registry import load_data
from experiments.objects import Run
from experiments.presets import get_preset
from experiments.records.record import read_metrics, run_directory, run_status
from experiments.run.plan import Training, prepare_runs
from experiments.trackers import registry
from experiments.trackers.registry import TRACKERS, TrackedRun, parse_trackers
from experiments.train.checkpoint import checkpoint_path

PROJECT = Path(__file__).parents[3]
RUN = Run("elu+1-rope-after", 0)
CONFIG = dataclasses.replace(
    get_preset("smoke").config, data="text", steps=10, log_every=2, evaluate_every=5, checkpoint_every=4, budgets="6"
)
TRAIN = """
import sys
from experiments.run.job import read_job, train_job
from experiments.train.loop import RunLog, RunStopped

job, done = read_job(sys.argv[1])[0], []
class Log(RunLog):
    progress = lambda self, *step: done.append(step)
    should_stop = lambda self: len(done) == int(sys.argv[2])
    note = lambda self, sentence: print(sentence)
try:
    train_job(job, False, Log())
except RunStopped:
    sys.exit(3)
"""


def prepared(root, *trackers):
    """The job of a run that is to be trained."""
    text = root.parent / "text"
    text.write_text("to be or not to be, that is the question\n" * 500)
    sha256 = load_data("text", None, text).sha256
    training = Training(root, CONFIG, None, text, sha256, "cpu", trackers=trackers)
    root.mkdir()
    (job,) = prepare_runs(training, [RUN])
    return job


def train(job, home, status, stop_after=-1):
    """Train in a process of its own, which ends with a status: 3 if it was stopped. Returns what it printed."""
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "TRACKIO_"))}
    words = [sys.executable, "-c", TRAIN, str(job.directory), str(stop_after)]
    process = subprocess.run(words, cwd=PROJECT, env=unset | {"HOME": str(home)}, capture_output=True, text=True)
    said = process.stdout + process.stderr
    assert (process.returncode, "left out" in said) == (status, False), said
    return said


def recorded(job):
    """(step, split/metric) -> value, as metrics.jsonl has it."""
    rows = read_metrics(job.directory / "metrics.jsonl")
    return {(row.step, f"{row.split}/{name}"): value for row in rows for name, value in row.metrics.items()}


def told_to_tensorboard(job):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(job.directory / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return [((one.step, name), one.value) for name in events.Tags()["scalars"] for one in events.Scalars(name)]


def told_to_trackio(job):
    with sqlite3.connect(job.root / "trackio" / f"{job.root.name}.db") as database:
        rows = database.execute("SELECT run_name, step, metrics FROM metrics").fetchall()
        (name,) = {name for name, _, _ in rows}
        assert name.startswith(f"{RUN} (")
    return [((step, name), value) for _, step, metrics in rows for name, value in json.loads(metrics).items()]


TOLD = {"tensorboard": told_to_tensorboard, "trackio": told_to_trackio}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A run that was stopped and went on in another process, with every tracker whose package is here; and its home."""
    place = tmp_path_factory.mktemp("tracked")
    home = place / "home"
    home.mkdir()
    job = prepared(place / "out", *(name for name in (*TOLD, "wandb") if find_spec(name)))
    train(job, home, 3, stop_after=7)
    shutil.rmtree(checkpoint_path(job.directory / "checkpoint", 6))  # so that some rows are made twice
    assert "resumed at step 4" in train(job, home, 0)
    return job, home


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("name", TOLD)
def test_a_run_that_goes_on_tells_a_tracker_every_number_once(tracked, name):
    pytest.importorskip(name, reason=f"{name} is not installed")
    job, _ = tracked
    told = TOLD[name](job)
    assert sorted(place for place, _ in told) == sorted(recorded(job))
    assert {step for (step, of), _ in told if of == "test/bits_per_byte"} == {6, 10}
    # TensorBoard keeps float32.
    assert dict(told) == pytest.approx(recorded(job), rel=1e-6)


@pytest.mark.slow
def test_nothing_is_written_outside_the_comparison(tracked):
    assert [path for path in tracked[1].rglob("*") if path.is_file()] == []


class Broken:
    """Fails at the row that it is asked of."""

    calls: list[str]

    def __init__(self, run):
        type(self).calls = [f"{run.variant} {run.seed} {run.config['steps']}"]

    def log(self, step, metrics):
        self.calls.append(f"{step} {' '.join(metrics)}")
        if step == 2:
            raise RuntimeError("no\nroom")

    def finish(self):
        self.calls.append("finished")


class Unmade(Broken):
    def __init__(self, run):
        raise OSError("unreachable")


TRACKERS.add("broken", Broken, __name__)
TRACKERS.add("unmade", Unmade, __name__)


def given_to(package, monkeypatch, root):
    """What the tracker of a run gives its package: the arguments of ``init``, and what is logged."""
    given, logged = {}, []
    directory = run_directory(root, *RUN)
    directory.mkdir(parents=True, exist_ok=True)
    run = types.SimpleNamespace(define_metric=lambda *names, **settings: None)
    run.log = lambda metrics, **step: logged.append(metrics | step)

    def init(project=None, **arguments):
        given.update(arguments, project=project)
        return run

    module = types.ModuleType(package)
    module.Settings, module.init = dict, init
    monkeypatch.setitem(sys.modules, package, module)
    for name in ("WANDB_CACHE_DIR", "TRACKIO_DIR"):
        monkeypatch.setenv(name, str(directory))
    TRACKERS[package](TrackedRun(root, directory, *RUN, {})).log(3, {"train/loss": 2.0})
    return given, logged


@pytest.mark.parametrize("package", ["wandb", "trackio"])
def test_only_a_run_that_goes_on_has_a_name_or_id_that_was_there(package, tmp_path, monkeypatch):
    """The others would be written over, or into."""

    def given(root):
        arguments, logged = given_to(package, monkeypatch, root)
        assert logged == [{"step": 3, "train/loss": 2.0}]
        return arguments.get("id"), arguments["name"]

    first = given(tmp_path / "out")
    shutil.copytree(tmp_path / "out", tmp_path / "copy" / "out")
    assert [given(tmp_path / "out"), given(tmp_path / "copy" / "out")] == [first, first]
    shutil.rmtree(tmp_path / "out")
    assert given(tmp_path / "out") != first


@pytest.mark.parametrize("name", ["50% of it?: #1", "ünï\tcode", "x" * 200, "Registry-of_artifacts", "my_system"])
def test_a_comparison_of_any_name_is_a_project_that_services_take(name, tmp_path, monkeypatch):
    of_wandb, of_trackio = (
        given_to(package, monkeypatch, tmp_path / name)[0]["project"] for package in ("wandb", "trackio")
    )
    # As wandb 0.31 and trackio 0.43 refuse them.
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", of_wandb)
    assert not re.search("(?i)^registry-|_[a-z]+$", of_trackio)


def test_trackers_that_fail_are_told_of_once_and_end_nothing(tmp_path):
    job = prepared(tmp_path / "out", "tensorboard")
    assert main(["train", str(job.directory), "--tracker", "broken,unmade"]) == 0
    assert not (job.directory / "tensorboard").exists()
    assert run_status(job.root, *RUN).state == "done"
    assert run_status(job.root, *RUN).notes == [
        "the tracker unmade failed and was left out (OSError: unreachable); metrics.jsonl has all of it",
        "the tracker broken failed and was left out (RuntimeError: no room); metrics.jsonl has all of it",
    ]
    assert Broken.calls == [
        f"{RUN.variant} 0 10",
        "0 validation/bits_per_byte",
        "2 " + " ".join(f"train/{name}" for name in read_metrics(job.directory / "metrics.jsonl")[1].metrics),
    ]


def test_what_is_no_tracker_or_lacks_its_package_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    for names, said in (
        ("tensorbord", "did you mean 'tensorboard'?"),
        ("tensorboard,wandb", 'pip install "tensorboard"'),
    ):
        assert main(["run", "convergence", "--out", str(tmp_path / "out"), "--tracker", names]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert parse_trackers("broken, unmade,broken") == ["broken", "unmade"]
