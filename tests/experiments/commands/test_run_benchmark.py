"""``run benchmark``: what is trained first, what a stop leaves, and that nothing is trained twice."""

import json
import shutil

import pandas as pd
import pytest

from experiments.cli import main
from experiments.commands import run_benchmark as driver
from experiments.console import command_line
from experiments.objects import Job, Run
from experiments.records.files import write_json
from experiments.records.record import read_comparison, run_directory, run_status, write_record
from experiments.studies.benchmark.definition import read_benchmark
from experiments.train.costs import Costs
from experiments.train.tuning import parse_rates, trial_name
from experiments.variants import without_rate
from tests.made_up import make_record, quick, run_options_of

V1 = read_benchmark()
HOUR = 3600
SPLITS = ("validation", "test")
SMOKE = ["run", "benchmark", "--preset=smoke", "--workers=1"]
SOME = "language-rates,language,language-check,recall-2k,copying,parity-16,s5-16"
"""tasks of each kind, the first of which that searches no rates has every variant"""
MORE, MORE_RATES = V1.tasks["copying"].more, V1.tasks["language-rates"].more


class Made:
    """Runs that are made without training: an hour each, on a clock of our own.

    The best learning rate is what of a grid is next to 0.004. A search has the trials of its grid; the first seed then
    stands for one more.
    """

    def __init__(self, root):
        self.root, self.now, self.trained, self.measured, self.rates = root, 0.0, [], [], {}

    def clock(self):
        return self.now

    def make(self, limit, task, directory, variant, seed, config, loss=2.0):
        """Returns whether there was time for it."""
        if (directory / "status.json").exists():
            return True
        if limit and not limit.allows(Job(Run(variant, seed), directory)):
            return False
        self.now += HOUR
        self.trained.append((task, variant, seed))
        directory.mkdir(parents=True)
        rows = [{"step": config.steps, "tokens": 1, "split": split, "bits_per_byte": loss} for split in SPLITS]
        write_json(directory / "status.json", {"state": "done", "time": 1.0})
        (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return True

    def run_training(self, plan):
        options, config, limit, root = plan.options, plan.config, plan.limit, plan.root
        names = [variant.name for variant in plan.variants]
        rates = {each.name: each.settings.get("learning_rate") for each in plan.variants}
        grid = parse_rates(options.learning_rates) if options.learning_rates else []
        assert plan.rate_seeds == 1
        self.rates[root.name] = self.rates.get(root.name, {}) | rates
        self.words = options.words
        record = root / "comparison.json"
        found = {each.name: each.settings for each in read_comparison(root).variants} if record.exists() else {}
        for variant in names:
            trials = [(rate, trial_name(variant, rate)) for rate in grid if not found.get(variant)]
            done = [
                self.make(limit, root.name, run_directory(root / "tuning", trial, 0), trial, 0, config, rate)
                for rate, trial in ((abs(rate - 0.004), trial) for rate, trial in trials)
            ]
            rate = min(grid, key=lambda rate: abs(rate - 0.004)) if grid else rates.get(variant)
            found.setdefault(variant, {})
            if all(done) and rate:
                found[variant] = {"learning_rate": rate}
        for seed in range(plan.seeds):
            for variant in names:
                if not grid or found[variant]:
                    self.make(limit, root.name, run_directory(root, variant, seed), variant, seed, config)
        variants = [{"name": name, "settings": settings} for name, settings in found.items()]
        of_all = {"learning_rates": grid, "rate_seeds": int(bool(grid)), "config": vars(config)}
        write_record(record, make_record(name=root.name, variants=variants, seeds=list(range(plan.seeds)), **of_all))
        (root / "report.html").touch()
        return 0

    def run_measurements(self, plan):
        self.measured.append((plan.study.name, plan.root.name))
        return 0

    def run(self, *words):
        return driver.run_benchmark(run_options_of("benchmark", "--out", self.root, *words), self.clock)


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
    at = {run: place for place, run in enumerate(made.trained)}
    variants = V1.tasks["language"].variants

    def last(*seeds, of=variants, task="language"):
        return max(at[task, variant, seed] for variant in of for seed in seeds)

    # The search for six variants, their first seed; that for the others, theirs; seeds 1 and 2.
    assert made.trained[:18] == [
        ("language-rates", trial_name(variant, rate), 0) for variant in variants[:6] for rate in (0.002, 0.004, 0.008)
    ]
    assert made.trained[24:30] == [("language", variant, 0) for variant in variants[:6]]
    trials = [at["language-rates", trial_name(variant, 0.008), 0] for variant in variants]
    assert last(0, of=variants[:6]) < trials[6] < max(trials) < last(0) < last(1) < last(2)
    tasks = list(dict.fromkeys(task for task, _, _ in made.trained))
    assert tasks[:5] == ["language-rates", "language", "language-check", "recall-8k", "recall-2k"]
    rope = "softmax-rope"
    assert last(2) < at["language-check", f"{rope}@learning_rate=0.002", 0] < at["recall-8k", rope, 2]
    assert at["ladder-1.6m-rates", rope, 0] < at["ladder-1.6m", rope, 1] < at["language", rope, 3]
    assert last(4) < at["windows-256", rope, 0] < at["second-text", rope, 4] < at["recall-32k", rope, 0]
    assert at["second-text", rope, 4] < at["language", V1.tasks["language"].more[0], 0] < at["ladder-1.6m", rope, 2]
    assert len(made.trained) == len(at)
    ordered = {name for stage in V1.stages for name in stage.tasks}
    assert {task for task, _, _ in made.trained} == ordered - {"cost"}
    assert {*V1.tasks} - ordered == {"ladder-6.4m-rates", "ladder-6.4m"}
    assert made.measured == [("speed", "cost")]
    # Every task that is part of the order has all its seeds at the end.
    for task in ordered - {"cost"}:
        assert {seed for name, _, seed in made.trained if name == task} == set(range(V1.tasks[task].seeds))


def test_rates_are_those_that_were_found_and_their_neighbours_are_checked(made):
    assert made.run("--task", "language-rates,language,language-check,recall-8k") == 0
    trained = {variant for task, variant, _ in made.trained if task == "language"}
    assert made.rates["language"] == dict.fromkeys(trained, 0.004)
    checked = [variant for task, variant, _ in made.trained if task == "language-check"]
    assert checked == [
        trial_name(variant, rate) for variant in V1.tasks["language-check"].variants for rate in (0.002, 0.008)
    ]
    assert {*made.rates["recall-8k"].values()} == {None}


def test_a_variant_whose_rate_is_not_found_waits_and_the_driver_says_so(made, capsys):
    assert made.run("--task=language") == 1
    assert not made.trained
    said = " ".join(capsys.readouterr().out.split())
    assert "left out until language-rates has found their learning rates: softmax-rope, elu+1-rope-after@decay" in said
    assert "language is not done; the same command tries it again" in said
    # One that is added is searched first, where both tasks are named.
    added = "elu+1-none@decay=retnet"
    assert made.run("--task=language-rates,language", f"--variants=softmax-rope,{added}") == 0
    assert made.rates["language"] == {"softmax-rope": 0.004, added: 0.004}
    assert made.run("--task=language", "--variants=softmax-rope,taylor-none") == 1
    assert "learning rates: taylor-none\n" in capsys.readouterr().out
    assert "taylor-none" not in {variant for _, variant, _ in made.trained}


def test_the_same_command_goes_on_and_repeats_nothing(made, capsys):
    tasks = ["language-rates", "language", "copying"]
    words = f"--task={','.join(tasks)}"
    assert made.run(words, "--for", "20h") == 0
    assert len(made.trained) == 20
    assert made.now == 20 * HOUR
    said = capsys.readouterr().out
    assert "runs left, about " in said
    assert command_line(["run", "benchmark", "--out", str(made.root), words])[:60] in said
    left = int(said.split(" runs left")[0].split()[-1])
    assert made.run(words, "--for=90m") == 0  # an hour fits into it once
    assert len(made.trained) == 21
    assert f"{left - 1} runs left, about {left - 1}.0 hours" in capsys.readouterr().out
    assert made.run(words, "--for=59m") == 0
    assert len(made.trained) == 21
    assert made.run(words) == 0
    assert len(made.trained) == len(set(made.trained)) == 20 + left
    before = list(made.trained)
    assert made.run(words) == 0
    assert made.trained == before
    assert {task for task, _, _ in before} == {*tasks}


def test_one_task_and_a_variant_that_is_added(made):
    assert made.run("--task", "copying", "--variants", "elu+1-none@decay=fixed") == 0
    assert made.trained[-3:] == [("copying", "elu+1-none@decay=fixed", seed) for seed in range(3)]
    assert len(made.trained) == 3 + 3  # trials
    assert made.words == ("run", "benchmark", "--task=copying", f"--out={made.root}")
    made.trained.clear()
    assert made.run("--task=ladder-6.4m,ladder-6.4m-rates") == 0
    assert len(made.trained) == 5 * (4 + 3)


def test_the_plan_says_runs_and_hours_and_what_models_cost(made, capsys, monkeypatch):
    monkeypatch.setattr(driver, "costs", lambda *_: Costs(470_592, 2400, 1_500_000))
    assert made.run("--task", "copying,s3-16", "--plan") == 0
    said = capsys.readouterr().out
    runs = sum((3 + 3) * len(V1.tasks[name].variants + more) for name, more in {"copying": MORE, "s3-16": ()}.items())
    assert f"{runs} runs left, about {runs}.0 hours of one core" in said
    assert "470,592" in said
    assert "2,400" in said
    assert "1.50" in said
    assert not made.trained
    assert not made.root.exists()
    begun = run_directory(made.root / "copying", V1.tasks["copying"].variants[0], 0)
    begun.mkdir(parents=True)
    row = {"step": V1.config("copying", "cpu").steps // 2, "tokens": 1, "split": "train", "loss": 1.0}
    (begun / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert made.run("--task", "copying,s3-16", "--plan") == 0
    assert f"{runs} runs left, about {runs - 0.5} hours of one core" in capsys.readouterr().out


@pytest.mark.slow
def test_packed_tasks_are_gone_on_from_and_nothing_is_repeated(tmp_path, capsys):
    """Two tasks at smoke size; then on a machine that has only what was packed."""
    pytest.importorskip("pyarrow")
    packed = tmp_path / "packed"

    def run(there, *words):
        with quick():
            assert main([*SMOKE, f"--out={tmp_path / there}", f"--pack={packed}", *words]) == 0
        return capsys.readouterr().out

    both, one = "--task=language-rates,copying", "--variants=softmax-rope"
    assert run("here", both, one).count(": done\n") == 2 * 3  # the grid's two rates and one beyond
    before = {path: path.read_bytes() for path in packed.rglob("*") if path.is_file()}
    assert {"runs.parquet", "comparison.json"} <= {path.name for path in before}
    shutil.rmtree(tmp_path / "here")
    (tmp_path / "there/copying").mkdir(parents=True)  # of a copy that a stop came into
    assert ": started" not in run("there", both, one)
    assert not [*(tmp_path / "there").rglob("comparison.json")]
    assert {path: path.read_bytes() for path in before} == before
    # What is not packed yet is trained; the others' rows stay.
    added = run("there", "--task=copying", f"{one},elu+1-none")
    assert "softmax-rope seed 0: started" not in added
    assert "softmax-rope@learning_rate" not in added
    assert "elu+1-none@learning_rate=0.01 seed 0: done" in added
    assert {*pd.read_parquet(packed / "copying" / "longer.parquet")["variant"]} == {"softmax-rope", "elu+1-none"}
    # Rates that are only packed are found.
    assert "softmax-rope@learning_rate=0.01 seed 0: done" in run("there", "--task=language-check", one)


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [SOME, pytest.param("", marks=pytest.mark.full)])
def test_every_variant_and_every_task_run_at_smoke_size(tmp_path, capsys, tasks):
    """The second time nothing is left to do."""
    words = [*SMOKE, f"--out={tmp_path}", *([f"--task={tasks}"] if tasks else [])]
    with quick():
        assert main(words) == 0
        trained = capsys.readouterr().out
        assert main(words) == 0
    assert ": started" in trained
    assert ": started" not in capsys.readouterr().out
    comparisons = V1.comparisons("smoke", tuple(tasks.split(",")) if tasks else ())
    every = {variant for task in V1.tasks.values() for variant in task.variants + task.more}
    assert every in [{*each.variants} for each in comparisons]
    assert {len(each.variants) for each in comparisons if each.study != "speed"} == {2, len(every)}
    for each in comparisons:
        assert (tmp_path / each.task / "report.html").exists()
        record = read_comparison(tmp_path / each.task)
        assert {without_rate(variant.name) for variant in record.variants} == {*each.variants}
        assert all(run_status(tmp_path / each.task, *run).state == "done" for run in record.runs)
