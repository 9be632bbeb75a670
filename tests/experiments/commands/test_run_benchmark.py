"""``run benchmark``: what is trained first, what a stop leaves, and that nothing is trained twice."""

import pytest

from experiments.cli import main
from experiments.commands import run_benchmark as driver
from experiments.commands import run_training
from experiments.console import command_line
from experiments.launch.launcher import Job, Run
from experiments.launch.time_limit import TimeLimit, parse_time
from experiments.options import RunOptions, parse
from experiments.records.files import write_json
from experiments.records.record import run_directory
from experiments.studies.benchmark.costs import Costs
from experiments.studies.benchmark.definition import read_benchmark
from tests.made_up import undrawn

V1 = read_benchmark()
HOUR = 3600


class Made:
    """Runs that are made without training: an hour each, on a clock of our own."""

    def __init__(self, root):
        self.root, self.now, self.trained, self.measured = root, 0.0, [], []

    def clock(self):
        return self.now

    def run_training(self, study, options, config, rates, limit):
        root = options.directory
        for seed in range(options.seeds):
            for variant in options.variants.split(","):
                directory = run_directory(root, variant, seed)
                if (directory / "status.json").exists():
                    continue
                if limit and not limit.allows(Job(Run(variant, seed), directory)):
                    break
                self.now += HOUR
                self.trained.append((root.name, variant, seed))
                directory.mkdir(parents=True)
                test = {"step": config.steps, "tokens": 1, "split": "test", "bits_per_byte": 2.0}
                write_json(directory / "status.json", {"state": "done", "time": 1.0})
                (directory / "metrics.jsonl").write_text(str(test).replace("'", '"') + "\n")
        root.mkdir(parents=True, exist_ok=True)
        (root / "report.md").touch()
        self.words = options.words
        return 0

    def run_measurements(self, study, options):
        self.measured.append((study.name, options.directory.name))
        return 0

    def run(self, *words):
        options = parse("run", RunOptions, ["benchmark", "--out", str(self.root), *words], "run")
        return driver.run_benchmark(options, self.clock)


@pytest.fixture
def made(tmp_path, monkeypatch):
    made = Made(tmp_path / "v1")
    monkeypatch.setattr(driver, "run_training", made.run_training)
    monkeypatch.setattr(driver, "run_measurements", made.run_measurements)
    monkeypatch.setattr(driver, "estimated_seconds", lambda variants, *_: {each.name: HOUR for each in variants})
    monkeypatch.setattr(driver._Driver, "objective", lambda self, task: None)
    return made


def test_the_order_is_that_of_worth_and_leaves_whole_pairs(made):
    assert made.run() == 0
    language = V1.tasks["language"]
    first = [("language", variant, seed) for seed in range(3) for variant in language.variants]
    assert made.trained[: len(first)] == first
    tasks = list(dict.fromkeys(task for task, _, _ in made.trained))
    assert tasks[:3] == ["language", "recall-8k", "recall-2k"]
    at = {run: place for place, run in enumerate(made.trained)}
    assert (
        at["ladder-1.6m", "softmax-rope", 1] < at["language", "softmax-rope", 3] < at["windows-256", "softmax-rope", 0]
    )
    assert (
        at["second-text", "softmax-rope", 4]
        < at["language", language.more[0], 0]
        < at["ladder-1.6m", "softmax-rope", 2]
    )
    assert at["language", language.variants[-1], 4] < at["language", language.more[0], 0]
    assert len(made.trained) == len(at)
    ordered = {name for stage in V1.stages for name in stage.tasks}
    assert {task for task, _, _ in made.trained} == ordered - {"cost"}
    assert "ladder-6.4m" not in ordered
    assert made.measured == [("speed", "cost")]
    # Every task that is part of the order has all its seeds at the end.
    for task in ordered - {"cost"}:
        assert {seed for name, _, seed in made.trained if name == task} == set(range(V1.tasks[task].seeds))


def test_the_same_command_goes_on_and_repeats_nothing(made, capsys):
    assert made.run("--for", "20h") == 0
    assert len(made.trained) == 20
    assert made.now == 20 * HOUR
    said = capsys.readouterr().out
    whole = V1.comparisons()
    assert "runs are left, about " in said
    assert command_line(["run", "benchmark", "--out", str(made.root), "--for", "20h"])[:60] in said
    left = int(said.split(" runs are left")[0].split()[-1])
    assert made.run("--for=90m") == 0  # an hour fits into it once
    assert len(made.trained) == 21
    assert f"{left - 1} runs are left, about {left - 1}.0 hours" in capsys.readouterr().out
    assert made.run("--for=59m") == 0
    assert len(made.trained) == 21
    assert made.run() == 0
    assert len(made.trained) == len(set(made.trained)) == 20 + left
    before = list(made.trained)
    assert made.run() == 0
    assert made.trained == before
    assert len({each.task for each in whole}) == len({task for task, _, _ in before}) + 1


def test_a_run_that_was_stopped_needs_only_the_rest(made, tmp_path):
    limit = TimeLimit(HOUR, made.clock)
    limit.of_run, limit.steps = {"a": 1.5 * HOUR}, 100
    job = Job(Run("a", 0), tmp_path)
    assert limit.seconds(job) == 1.5 * HOUR
    (tmp_path / "metrics.jsonl").write_text('{"step": 40, "tokens": 1, "split": "train", "loss": 1.0}\n')
    assert limit.seconds(job) == pytest.approx(0.9 * HOUR)
    assert limit.allows(job)
    made.now += 0.2 * HOUR
    assert not limit.allows(job)
    made.now = 0.0
    assert not limit.allows(job), "after one that had to wait none is started"


def test_one_task_and_a_variant_that_is_added(made):
    assert made.run("--task", "copying", "--variants", "elu+1-none@decay=fixed") == 0
    assert made.trained == [("copying", "elu+1-none@decay=fixed", seed) for seed in range(3)]
    assert made.words == ("run", "benchmark", "--task=copying", f"--out={made.root}")
    made.trained.clear()
    assert made.run("--task=ladder-6.4m") == 0
    assert len(made.trained) == 5 * 3


def test_a_smoke_run_has_every_variant_and_every_task(made):
    assert made.run("--preset", "smoke") == 0
    trained = {task: [variant for name, variant, _ in made.trained if name == task] for task in V1.tasks}
    every = {variant for task in V1.tasks.values() for variant in task.variants + task.more}
    assert set(trained["language"]) == every
    assert all(len(variants) == 2 for task, variants in trained.items() if task not in ("language", "cost"))
    assert made.measured == [("speed", "cost")]


def test_the_plan_says_runs_and_hours_and_what_models_cost(made, capsys, monkeypatch):
    monkeypatch.setattr(driver, "costs", lambda *_: Costs(470_592, 2400, 1_500_000))
    assert made.run("--task", "copying,s3-16", "--plan") == 0
    said = capsys.readouterr().out
    runs = sum(3 * len(V1.tasks[name].variants) for name in ("copying", "s3-16"))
    assert f"{runs} runs are left, about {runs}.0 hours of one core" in said
    assert "470,592" in said
    assert "2,400" in said
    assert "1.50" in said
    assert not made.trained
    assert not made.root.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "3"], "--steps would make other runs than those of benchmark v1"),
        (["--seeds", "3"], "--seeds would make other runs"),
        (["--preset", "gpu"], "--preset is gpu; run benchmark has cpu and smoke"),
        (["--task", "copyin"], "--task: there is no task 'copyin'; did you mean 'copying'"),
        (["--variants", "elu+1-none"], "--variants is given without --task"),
        (["--for", "2"], "--for is '2'; give a time such as 2h, 90m or 45s"),
        (["--for", "0h"], "--for is '0h'"),
    ],
)
def test_wrong_use(words, said, capsys):
    assert main(["run", "benchmark", *words]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert said in message


def test_a_task_is_not_for_other_studies(capsys):
    assert main(["run", "decay", "--task", "copying"]) == 2
    assert "--task is for run benchmark" in capsys.readouterr().err


def test_times():
    assert [parse_time(text) for text in ("2h", "90m", "6m", "45s", "0.5h")] == [7200, 5400, 360, 45, 1800]


def test_a_study_starts_no_run_that_there_is_no_time_for(tmp_path, capsys, monkeypatch):
    """The first run fits by its estimate, the second does not."""
    estimates = {"softmax-rope": 0.001, "elu+1-none": 1e6}
    monkeypatch.setattr(
        run_training,
        "estimated_seconds",
        lambda names, *_: {each.name: estimates.get(each.name, 1e6) for each in names},
    )
    words = ["run", "convergence", "--preset", "smoke", "--steps=2", "--variants", "softmax-rope,elu+1-none"]
    words += ["--out", str(tmp_path / "out"), "--workers=1"]
    with undrawn():
        assert main([*words, "--for", "10h"]) == 0
    said = capsys.readouterr().out
    assert "softmax-rope seed 0: done" in said
    assert "elu+1-none seed 0: started" not in said
    assert "1 runs are left that there was no time for (--for), about 11.6 days one at a time" in said
    with undrawn():  # nor a trial of a learning rate
        assert main([*words, "--out", str(tmp_path / "tuned"), "--for", "10h", "--learning-rates", "1e-3,2e-3"]) == 0
    assert ": started" not in capsys.readouterr().out
    assert main([*words, "--for", "10h", "--launcher", "ray"]) == 2
    assert "--for is for runs of this machine" in capsys.readouterr().err


@pytest.mark.slow
def test_every_variant_and_every_task_run_at_smoke_size(tmp_path, capsys):
    """Two minutes on two cores; the second time nothing is left to do."""
    words = ["run", "benchmark", "--preset", "smoke", "--out", str(tmp_path)]
    with undrawn():
        assert main(words) == 0
        trained = capsys.readouterr().out
        assert main(words) == 0
    tasks = V1.comparisons("smoke")
    assert trained.count(": done\n") == sum(len(each.variants) for each in tasks)
    assert ": started" not in capsys.readouterr().out
    assert all((tmp_path / each.task / "report.html").exists() for each in tasks)
