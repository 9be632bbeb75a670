"""Runs for as long as there is time: their order, how long they are taken to need, what a stop leaves, and going on."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import pytest
import torch

from experiments.cli import main
from experiments.commands import place, plan, run_training
from experiments.commands.estimate import recorded_seconds, runs_by_seed
from experiments.config import Config
from experiments.objects import Job, Run
from experiments.presets import GENERAL, get_preset
from experiments.records.files import write_json
from experiments.records.parquet import read_rows, runs_as_parquet
from experiments.records.record import packed_statuses, read_comparison, run_status, write_record
from experiments.records.schema import PackedStatus, Status
from experiments.run.loop import OUT_OF_TIME, Ended
from experiments.run.plan import Training
from experiments.run.time_limit import TimeLimit
from experiments.studies.benchmark.definition import read_benchmark
from experiments.studies.registry import STUDIES
from tests.experiments.run.conftest import train, training_of
from tests.made_up import Here, make_record, quick

RUN = Run("softmax-none", 0)


@pytest.fixture
def training(tmp_path, text):
    return training_of(tmp_path / "out", text, steps=100_000)


def train_for(training, limit, launcher=None):
    limit.of_run, limit.steps = {RUN.variant: 1.0}, training.config.steps
    return train(training, [RUN], launcher, limit)


def variant(name, baseline):
    return {"name": name, "baseline": baseline}


def test_seed_by_seed_each_variant_comes_behind_its_baseline():
    variants = [
        variant("softmax-rope", "softmax-none"),
        variant("elu+1-rope-after@decay=fixed", "elu+1-rope-after"),
        variant("elu+1-rope-after", "elu+1-none"),
        variant("softmax-none", "softmax-none"),
        variant("elu+1-none", "elu+1-none"),
    ]
    names = ["softmax-none", "softmax-rope", "elu+1-none", "elu+1-rope-after", "elu+1-rope-after@decay=fixed"]
    record = make_record(variants=variants, seeds=[0, 1], baseline="")
    assert runs_by_seed(record) == [Run(name, seed) for seed in (0, 1) for name in names]
    record.baseline = "elu+1-none"
    assert [run.variant for run in runs_by_seed(record)][:3] == ["elu+1-none", "softmax-rope", names[-1]]
    both = [variant("softmax-rope", "softmax-none"), variant("softmax-none", "softmax-rope")]
    of_each_other = make_record(variants=both, seeds=[0], baseline="")
    assert runs_by_seed(of_each_other) == [Run("softmax-none", 0), Run("softmax-rope", 0)]


def test_a_limit_learns_from_what_has_ended_and_knows_when_it_is_over(tmp_path):
    now = [0.0]
    limit = TimeLimit(100, lambda: now[0])
    limit.of_run, limit.steps = {"a": 60.0, "b": 60.0}, 10
    fast, slow, resumed = (
        Job(Run(name, seed), tmp_path / f"{name}{seed}") for name, seed in (("a", 0), ("b", 0), ("b", 1))
    )
    resumed.directory.mkdir()
    (resumed.directory / "metrics.jsonl").write_text('{"step": 5, "tokens": 1, "split": "train", "loss": 1.0}\n')
    for job in (fast, slow, resumed):
        assert limit.allows(job)
    now[0] = 20.0
    limit.ends(fast)
    limit.ends(resumed)
    assert limit.of_run == {"a": 20.0, "b": 60.0}
    now[0] = 80.0
    assert limit.allows(fast)
    assert not limit.is_over()
    assert not limit.reached
    now[0] = 100.0
    assert limit.is_over()
    assert limit.reached


@pytest.mark.slow
@pytest.mark.parametrize("is_whole", [pytest.param(True, marks=pytest.mark.full), False])
def test_a_run_that_has_not_ended_in_time_is_dropped_if_it_keeps_no_checkpoint_else_stopped(training, is_whole):
    config = dataclasses.replace(training.config, checkpoint_every=100_000 if is_whole else 50_000)
    training = dataclasses.replace(training, config=config)
    metrics = training.job(RUN).directory / "metrics.jsonl"
    limit = TimeLimit(10, lambda: 11.0 if metrics.exists() and metrics.read_text().count("train") else 0.0)
    ended = train_for(training, limit)[RUN]
    assert (ended.state, ended.reason) == ("queued", OUT_OF_TIME)
    assert limit.reached
    assert training.job(RUN).directory.exists() != is_whole
    status = run_status(training.root, *RUN)
    assert (status.state, status.reason) == ("queued", None if is_whole else OUT_OF_TIME)
    assert bool([*training.job(RUN).directory.glob("checkpoint/step*")]) != is_whole


@pytest.mark.parametrize(
    ("status", "exit_status", "ended"),
    [
        (Status(state="failed", reason="loss is nan at step 4"), 1, ("failed", "loss is nan at step 4")),
        (Status(state="running"), 1, ("running", "another process trains it")),
        (Status(state="queued", reason="stopped at step 3"), 143, ("queued", OUT_OF_TIME)),
        (Status(state="running"), -9, ("queued", OUT_OF_TIME)),
    ],
)
def test_what_ends_in_another_way_than_by_the_end_of_its_time_is_told_as_it_is(
    training, monkeypatch, status, exit_status, ended
):
    monkeypatch.setattr(Training, "drop", lambda *_: None)
    is_killed = exit_status == -9
    monkeypatch.setattr("experiments.run.loop.STOP_SECONDS", 0 if is_killed else 60)
    path, stopped = training.job(RUN).directory / "status.json", []

    def poll():
        if stopped != [False, True][: 1 + is_killed]:
            return None
        write_record(path, status)
        return exit_status

    process = SimpleNamespace(poll=poll, stop=lambda now: stopped.append(now))
    launcher = SimpleNamespace(room=1, start=lambda jobs: [process])
    times = iter([0.0, 0.0])
    limit = TimeLimit(10, lambda: next(times, 11.0))
    assert train_for(training, limit, launcher)[RUN] == Ended(RUN, *ended)
    assert run_status(training.root, *RUN).state == ended[0]


def test_a_shorter_run_that_is_extended_is_not_dropped(training):
    training = dataclasses.replace(training, config=dataclasses.replace(training.config, checkpoint_every=100_000))
    directory = training.job(RUN).directory
    directory.mkdir(parents=True)
    rows = [{"step": 4, "tokens": 1, "split": split, "bits_per_byte": 1.0} for split in ("validation", "test")]
    for kept in (rows, rows[:1]):
        (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
        training.drop(RUN)
        assert directory.exists() == (kept == rows)


def test_what_a_machine_left_that_was_taken_away_is_trained_anew(training):
    config = dataclasses.replace(training.config, steps=4, checkpoint_every=4)
    training = dataclasses.replace(training, config=config)
    directory = training.job(RUN).directory
    directory.mkdir(parents=True)
    write_json(directory / "status.json", {"state": "running", "reason": None, "notes": ["of before"]})
    (directory / "metrics.jsonl").write_text('{"step": 0, "tokens": 0, "split": "validation", "bits_per_byte": 1.0}\n')
    assert train_for(training, TimeLimit(3600), Here()) == {}
    status = run_status(training.root, *RUN)
    assert (status.state, status.notes) == ("done", [])


def write_run(root, variant, seed, rows):
    directory = root / variant / f"seed{seed}"
    directory.mkdir(parents=True)
    write_json(directory / "status.json", {"state": "done"})
    place = {"tokens": 1, "split": "train", "loss": 1.0}
    lines = [json.dumps({"step": 10 * number, **place, **row}) for number, row in enumerate(rows, start=1)]
    lines.append(json.dumps({"step": 10 * len(rows), "tokens": 1, "split": "test", "bits_per_byte": 1.0}))
    (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_what_runs_took_is_read_from_their_records(tmp_path):
    names = ["softmax-none", "elu+1-none", "favor+-none"]
    record = make_record(variants=[variant(name, name) for name in names], seeds=[0, 1], config=vars(Config(steps=30)))
    write_record(tmp_path / "comparison.json", record)
    write_run(tmp_path, "softmax-none", 0, [{"seconds": 2.0}, {"seconds": 4.0}, {"seconds": 7.0}])
    write_run(tmp_path, "softmax-none", 1, [{"seconds": 1.0}, {"seconds": 3.0}, {"seconds": 5.0}])
    # It was stopped, and went on after the second record.
    write_run(tmp_path, "elu+1-none", 0, [{"seconds": 2.0}, {"seconds": 4.0}, {"seconds": 3.0}])
    assert recorded_seconds(tmp_path, names, 30) == {"softmax-none": 7.0, "elu+1-none": 7.0}
    assert recorded_seconds(tmp_path, ["elu+1-none"], 30) == {"elu+1-none": 7.0}
    assert recorded_seconds(tmp_path, names, 40) == {}  # not finished
    assert place.runs_beside_each_other(tmp_path) == 1
    write_run(tmp_path, "elu+1-none", 1, [{}, {}, {"seconds": 1.0, "kernel_share": 0.4}])
    assert place.runs_beside_each_other(tmp_path) == 2
    write_run(tmp_path, "favor+-none", 1, [{}, {}, {"seconds": 1.0, "kernel_share": 0.9}])
    assert place.runs_beside_each_other(tmp_path) == 2
    write_run(tmp_path, "favor+-none", 0, [{}, {}, {"seconds": 1.0, "kernel_share": 0.01}])
    assert place.runs_beside_each_other(tmp_path) == place.MOST_ON_A_GPU
    assert place.runs_beside_each_other(tmp_path / "nowhere") == 1


def test_the_presets_of_a_gpu_have_the_sizes_that_they_tell():
    small = get_preset("gpu-small", STUDIES["convergence"]).config
    assert small.steps * small.tokens_per_step == pytest.approx(25e6, rel=1e-3)
    assert (small.optimizer, small.schedule, small.checkpoint_every) == ("muon", "trapezoid", small.steps)
    presets = (("gpu-small", "convergence", 10.6), ("gpu", "convergence", 85), ("gpu", "mlm", 19))
    for preset, study, millions in presets:
        config = get_preset(preset, STUDIES[study]).config
        assert 12 * config.layers * config.dim**2 / 1e6 == pytest.approx(millions, rel=0.02)
    for preset, rung in {"gpu-0.47m": "base", "gpu-1.6m": "1.6m", "gpu-6.4m": "6.4m"}.items():
        assert read_benchmark().sizes[rung].items() <= GENERAL[preset].items()


TINY = (
    "--layers=1 --dim=16 --heads=2 --num-features=8 --vocabulary-size=300 --context=16 --batch-size=2 --steps=6 "
    "--evaluate-every=3 --log-every=2 --evaluation-windows=4 --test-windows=4 --checkpoint-every=6 --warmup-steps=1 "
    "--precision=float32 --compile=no --seeds=2 --workers=1 --variants=softmax-rope,softmax-none"
).split()


@pytest.mark.slow
def test_a_queue_stops_after_whole_runs_and_goes_on_in_a_copy_of_what_was_packed(tmp_path, monkeypatch, capsys):
    """Of gpu-small at the size of a test."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("pyarrow")
    text = tmp_path / "text"
    text.write_text("to be or not to be, that is the question\n" * 2000)

    def run(out, time):
        words = ["--preset=gpu-small", f"--data-file={text}", *TINY, f"--out={out}", f"--for={time}"]
        with quick():
            assert main(["run", "convergence", *words]) == 0
        return capsys.readouterr().out

    class ForTwo(TimeLimit):
        """Time for two runs."""

        started = 0

        def allows(self, job):
            self.started += 1
            self.reached = self.started > 2
            return not self.reached

    with monkeypatch.context() as patch:
        patch.setattr(plan, "TimeLimit", ForTwo)
        patch.setattr(run_training, "leaves_the_report", lambda trainer: True)  # as on a GPU
        said = run(tmp_path / "here", "6m")
    done = [line.removesuffix(": done") for line in said.splitlines() if line.endswith(": done")]
    assert done == ["softmax-none seed 0", "softmax-rope seed 0"]
    assert "2 runs left that there was no time for (--for)" in said
    assert not (tmp_path / "here" / "report.md").exists()
    assert main(["pack", str(tmp_path / "here"), "--out", str(tmp_path / "packed")]) == 0
    capsys.readouterr()
    shutil.copytree(tmp_path / "packed", tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    statuses, runs = packed_statuses(tmp_path / "there"), tmp_path / "there/runs.parquet"
    statuses["softmax-none/seed1"] = PackedStatus(state="failed", reason="diverged")
    runs.write_bytes(runs_as_parquet(read_rows(runs), statuses))
    said = run(tmp_path / "there", "1h")
    started = [line.removesuffix(": started") for line in said.splitlines() if line.endswith(": started")]
    assert started == ["softmax-rope seed 1", "softmax-none seed 1"]  # what has failed comes last
    assert "estimating" not in said  # how long softmax-rope takes is on record
    assert "left that" not in said
    states = {run_status(tmp_path / "there", *each).state for each in read_comparison(tmp_path / "there").runs}
    assert states == {"done"}
    assert (tmp_path / "there" / "report.md").exists()


@pytest.mark.parametrize(("device", "leaves"), [("cuda", True), ("cpu", False)])
def test_a_gpu_whose_time_is_limited_does_not_wait_for_a_report(device, leaves):
    limit = SimpleNamespace(limit=TimeLimit(10))
    trainer = SimpleNamespace(place=SimpleNamespace(device=torch.device(device)), plan=limit)
    assert run_training.leaves_the_report(trainer) == leaves
    limit.limit = None
    assert not run_training.leaves_the_report(trainer)
