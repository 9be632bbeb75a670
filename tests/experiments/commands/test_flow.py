"""Several comparisons by one command: ``run all``, every reference by its own; and a study of several data sets.

Of both: what happens when one of them cannot run, or its data cannot be had.
"""

import shlex
from dataclasses import replace

import pytest

from experiments import compare
from experiments.cli import main
from experiments.commands import flow, run_training
from experiments.data.corpus import DataSet
from experiments.data.registry import DATA_SETS
from experiments.errors import RunFailed
from experiments.judge.references import REFERENCES, command
from experiments.objects import Job, Run
from experiments.presets import get_preset, size_of
from experiments.run import time_limit
from experiments.studies.registry import STUDIES
from experiments.study import resolve
from tests.made_up import run_options_of


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def collected(options, status=lambda words: 0):
    """The exit status, and the words of every command that was run."""
    ran = []

    def run_study(options):
        ran.append(list(options.words))
        if options.study in ("glue", "speed"):  # of all this would take long
            assert run_options_of(*options.words[1:]) == options, "its words are the command of the same run"
        return status(options.words)

    of_all = run_options_of("all", *options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow, "run_study", run_study)
        return flow.run_all(of_all), ran


def test_every_reference_is_run_by_its_command_with_the_options_and_the_runs_before(tmp_path):
    common = ["--workers=3", "--device=cpu", "--plugin=json"]
    status, ran = collected(["--preset", "cpu", *common])  # which is that of none but those that name no other
    assert status == 0
    assert (tmp_path / "results/runs").is_dir()  # or the first run would be refused
    for words, reference in zip(ran, REFERENCES, strict=True):
        trains = bool(STUDIES[words[1]].variants)
        own = [word for word in words if word not in common]
        assert f"python -m experiments {shlex.join(own)}" == command(reference) + " --reuse results/runs" * trains
        assert {*common} - {*words} == (set() if trains else {"--workers=3"})
    glue = [words for words in ran if words[1] == "glue"]
    assert len({words[words.index("--data") + 1] for words in glue}) == len(glue) == 5


def test_a_dry_run_makes_no_directory_and_names_none_that_is_not_there(tmp_path):
    _, ran = collected(["--dry-run"])
    assert len(ran) == len(REFERENCES)
    assert not any("--reuse" in words for words in ran)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("preset", ["gpu", "v0", "smoke,v0"])
def test_another_preset_runs_every_study_with_its_own_variants(preset):
    _, ran = collected(["--preset", preset])
    assert [words[1] for words in ran] == [name for name in STUDIES if name != "benchmark"]
    for words in ran:
        name = words[1]
        assert f"--preset={preset}" in words
        assert "--variants" not in words
        if name == "speed":
            settings = resolve(STUDIES[name].settings)
            assert settings(preset, "cpu") == settings(size_of(preset), "cpu")
        elif "v0" in preset:
            assert get_preset(preset, STUDIES[name]).config.optimizer == "adamw"
        elif (name, preset) == ("glue", "gpu"):
            assert words[words.index("--initial-weights") + 1] == "results/runs/gpu/mlm"


def test_one_that_cannot_run_does_not_keep_the_others(capsys):
    errors = {"mask": ValueError("no data"), "pairing": RunFailed("disk full")}

    def status(words):
        if words[1] in errors:
            raise errors[words[1]]
        return 0

    code, ran = collected([], status=status)
    assert (code, len(ran)) == (1, len(REFERENCES))
    shown = capsys.readouterr().out
    for name, error in errors.items():
        assert f"error: {error}" in shown
        assert f"{name} is not done; the same command tries it again" in shown


SMALL = {"data": "stdlib", "steps": 4, "evaluate_every": 2}
SMOKE = ["run", "several", "--preset", "smoke", "--variants", "softmax-none"]


def not_to_be_had(*_):
    raise ValueError("--data nowhere cannot be had")


@pytest.fixture
def several(monkeypatch):
    """Makes the study of convergence one of these data sets, of which nowhere is not to be had, or damaged."""

    def make(place=None, **of_data):
        study = replace(STUDIES["convergence"], name="several", presets={"smoke": SMALL | {"of_data": of_data}})
        monkeypatch.setitem(STUDIES._items, "several", study)
        monkeypatch.setitem(DATA_SETS._items, "nowhere", DataSet("nowhere", "", not_to_be_had, find=lambda _: place))

    make(
        stdlib={"steps": 6},
        nowhere={},
        **{"copying-64": {"instead_of": "stdlib"}, "parity-64": {"instead_of": "nowhere", "context": 64}},
    )
    return make


@pytest.mark.slow
@pytest.mark.full
def test_each_data_set_that_can_be_had_has_a_comparison(several, tmp_path, capsys):
    words = [*SMOKE, "--workers", "1", "--out", str(tmp_path / "all")]
    assert main(words) == 0
    assert {path.name for path in (tmp_path / "all").iterdir()} == {"stdlib", "parity-64", "index.html"}
    said = capsys.readouterr().out
    assert "left out: --data nowhere cannot be had" in said
    assert "left out: stdlib is here" in said
    assert said.splitlines()[-1].startswith("nowhere was left out, because it is not here")
    # The same command finds all done.
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.count("1 of 1 runs are done already, and the report is newer: there is nothing to do") == 2
    assert "loading" not in said
    # A report that was made since then makes the page over all anew.
    page = tmp_path / "all/index.html"
    before = page.stat().st_mtime_ns
    assert main(["report", str(tmp_path / "all/stdlib")]) == main(words) == 0
    assert page.stat().st_mtime_ns > before


def test_the_time_is_that_of_all_data_sets_together(several, tmp_path, capsys, monkeypatch):
    """A run takes two hours of the first data set and one of the other, and training only moves the clock."""
    clock, trained = [0.0], []
    monkeypatch.setattr(time_limit.TimeLimit.__init__, "__defaults__", (lambda: clock[0],))
    several(stdlib={}, **{"parity-64": {"context": 64}, "copying-32": {}})

    def train(plan):
        data, limit = plan.config.data, plan.limit
        hours = 2 if data == "stdlib" else 1
        limit.of_run = {"softmax-none": hours * 3600.0} | limit.of_run
        if limit.allows(Job(Run("softmax-none", 0), plan.root / "softmax-none" / "seed0")):
            trained.append(data)
            clock[0] += hours * 3600.0
        return 0

    monkeypatch.setattr(run_training, "run_training", train)
    monkeypatch.setattr(flow, "_report_of_all", lambda *_: "")
    assert main([*SMOKE, "--out", str(tmp_path / "all"), "--for", "3h"]) == 0
    assert trained == ["stdlib", "parity-64"]
    assert "the time is up (--for); the same command goes on" in capsys.readouterr().out
    trained.clear()
    assert main([*SMOKE, "--out", str(tmp_path / "all"), "--for", "90m"]) == 0
    assert trained == [], "what is next does not fit, and nothing later is begun"


@pytest.mark.parametrize(("words", "steps"), [((), 6), (("--data", "stdlib"), 6), (("--steps", "5"), 5)])
def test_settings_of_a_data_set_count_unless_they_are_given(several, capsys, words, steps):
    several(stdlib={"steps": 6})
    assert main([*SMOKE, "--dry-run", *words]) == 0
    assert f"{steps} steps of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "file", "said"),
    [
        (None, "comparison.json", "holds one comparison"),
        ("/somewhere", "x", "--data nowhere cannot be had"),
        (None, "x", "none of nowhere is here"),
    ],
)
def test_what_cannot_be_run_is_refused(several, tmp_path, capsys, place, file, said):
    several(place, nowhere={})
    (tmp_path / file).write_text("{}")
    assert main([*SMOKE, "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    with pytest.raises(ValueError, match="and several is a comparison of each data set; give nowhere"):
        compare("softmax-none", experiment="several", preset="smoke")
