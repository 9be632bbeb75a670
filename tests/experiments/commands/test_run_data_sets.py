"""A study of several data sets: a comparison of each, and what happens with those that cannot be had."""

from dataclasses import replace

import pytest

from experiments import compare
from experiments.cli import main
from experiments.commands import run_data_sets, run_training
from experiments.data.corpus import DataSet
from experiments.data.registry import DATA_SETS
from experiments.objects import Job, Run
from experiments.run import time_limit
from experiments.studies.registry import STUDIES

SMALL = {"data": "stdlib", "steps": 4, "evaluate_every": 2}


def not_to_be_had(*_):
    raise ValueError("--data nowhere cannot be had")


@pytest.fixture
def several(monkeypatch):
    """The study of convergence, to be run on what is always here, on what is not, and on what stands in for both."""
    of_data = {
        "stdlib": {"steps": 6},
        "nowhere": {},
        "copying-64": {"instead_of": "stdlib"},
        "parity-64": {"instead_of": "nowhere", "context": 64},
    }
    study = replace(STUDIES["convergence"], name="several", presets={"smoke": SMALL | {"of_data": of_data}})
    monkeypatch.setitem(STUDIES._items, "several", study)
    monkeypatch.setitem(DATA_SETS._items, "nowhere", DataSet("nowhere", "", not_to_be_had, find=lambda _: None))


@pytest.mark.slow
@pytest.mark.full
def test_each_data_set_that_can_be_had_has_a_comparison(several, tmp_path, capsys):
    words = ["run", "several", "--preset", "smoke", "--variants", "softmax-none", "--workers", "1"]
    assert main([*words, "--out", str(tmp_path / "all")]) == 0
    assert {path.name for path in (tmp_path / "all").iterdir()} == {"stdlib", "parity-64", "index.html"}
    said = capsys.readouterr().out
    assert "left out: --data nowhere cannot be had" in said
    assert "left out: stdlib is here" in said
    assert said.splitlines()[-1].startswith("nowhere was left out, because it is not here")
    # The same command finds all done.
    assert main([*words, "--out", str(tmp_path / "all")]) == 0
    assert capsys.readouterr().out.count("1 of 1 runs are done already") == 2


def test_the_time_is_that_of_all_data_sets_together(several, tmp_path, capsys, monkeypatch):
    """A run takes two hours of the first data set and one of the other, and training only moves the clock."""
    clock, trained = [0.0], []
    monkeypatch.setattr(time_limit.TimeLimit.__init__, "__defaults__", (lambda: clock[0],))
    of_data = {"stdlib": {}, "parity-64": {"context": 64}, "copying-32": {}}
    study = replace(STUDIES["several"], presets={"smoke": SMALL | {"of_data": of_data}})
    monkeypatch.setitem(STUDIES._items, "several", study)

    def train(study, options, config, rates=None, limit=None):
        hours = 2 if config.data == "stdlib" else 1
        limit.of_run = {"softmax-none": hours * 3600.0} | limit.of_run
        if limit.allows(Job(Run("softmax-none", 0), options.directory / "softmax-none" / "seed0")):
            trained.append(config.data)
            clock[0] += hours * 3600.0
        return 0

    monkeypatch.setattr(run_training, "run_training", train)
    monkeypatch.setattr(run_data_sets, "write_overview", lambda *_: "")
    words = ["run", "several", "--preset", "smoke", "--variants", "softmax-none", "--out", str(tmp_path / "all")]
    assert main([*words, "--for", "3h"]) == 0
    assert trained == ["stdlib", "parity-64"]
    assert "the time is up (--for); the same command goes on" in capsys.readouterr().out
    trained.clear()
    assert main([*words, "--for", "90m"]) == 0
    assert trained == [], "what is next does not fit, and nothing later is begun"
    assert "2 of 3" not in capsys.readouterr().out


def test_settings_of_a_data_set_count_unless_they_are_given(several, tmp_path, capsys):
    words = ["run", "several", "--preset", "smoke", "--variants", "softmax-none", "--dry-run"]
    assert main(words) == 0
    assert "6 steps of" in capsys.readouterr().out
    assert main([*words, "--data", "stdlib"]) == 0
    assert "6 steps of" in capsys.readouterr().out
    assert main([*words, "--steps", "5"]) == 0
    assert "5 steps of" in capsys.readouterr().out


def test_a_directory_of_one_comparison_is_refused(several, tmp_path, capsys):
    (tmp_path / "comparison.json").write_text("{}")
    assert main(["run", "several", "--preset", "smoke", "--out", str(tmp_path)]) == 2
    assert "holds one comparison" in capsys.readouterr().err


def test_compare_asks_for_the_data_set(several):
    with pytest.raises(
        ValueError, match="data is not given, and several is a comparison of each data set; give stdlib"
    ):
        compare("softmax-none", experiment="several", preset="smoke")


@pytest.mark.parametrize("place", ["/somewhere", None])
def test_data_that_are_damaged_are_refused_and_so_is_a_study_without_any(several, tmp_path, capsys, monkeypatch, place):
    data_set = DataSet("nowhere", "", not_to_be_had, find=lambda directory: place)
    monkeypatch.setitem(DATA_SETS._items, "nowhere", data_set)
    of_data = {"nowhere": {}}
    study = replace(STUDIES["several"], presets={"smoke": SMALL | {"of_data": of_data}})
    monkeypatch.setitem(STUDIES._items, "several", study)
    assert main(["run", "several", "--preset", "smoke", "--out", str(tmp_path / "all")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ("--data nowhere cannot be had" if place else "none of nowhere is here") in line
