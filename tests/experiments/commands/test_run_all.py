"""``run all``: every reference by its own command, and what happens when one of them cannot run."""

import shlex

import pytest

from experiments.cli import main
from experiments.commands.run_all import run_all
from experiments.errors import RunFailed
from experiments.judge.references import REFERENCES, command
from experiments.options import RunOptions, parse
from experiments.presets import get_preset, size_of
from experiments.studies.registry import STUDIES
from experiments.study import resolve


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def collected(options, status=lambda words: 0):
    """The exit status, and the words of every command that was run."""
    ran = []

    def run_one(words):
        ran.append(words)
        return status(words)

    return run_all(parse("run", RunOptions, ["all", *options], "run"), run_one), ran


def test_every_reference_is_run_by_the_command_that_its_claims_name():
    status, ran = collected([])
    assert status == 0
    named = [words[:-2] if "--reuse" in words else words for words in ran]
    assert [shlex.join(["python", "-m", "experiments", *words]) for words in named] == [*map(command, REFERENCES)]
    assert {words[1] for words in ran} <= set(STUDIES)
    glue = [words for words in ran if words[1] == "glue"]
    assert len({words[words.index("--data") + 1] for words in glue}) == len(glue) == 5
    assert all("," in words[words.index("--learning-rates") + 1] for words in glue), "rates of large models suit none"


def test_options_and_the_runs_before_go_to_every_run_that_takes_them(tmp_path):
    _, ran = collected(["--workers", "3", "--device=cpu", "--cell-timeout", "9", "--plugin", "json"])
    for words in ran:
        trains = bool(STUDIES[words[1]].variants)
        assert {"--device=cpu", "--plugin=json"} <= set(words)
        assert ("--run-timeout=9.0" in words) == trains
        assert ("--workers=3" in words) == (words[-2:] == ["--reuse", "results/runs"]) == trains
    assert (tmp_path / "results/runs").is_dir()  # or the first run would be refused


def test_a_dry_run_makes_no_directory_and_names_none_that_is_not_there(tmp_path):
    _, ran = collected(["--dry-run"])
    assert len(ran) == len(REFERENCES)
    assert not any("--reuse" in words for words in ran)
    assert not (tmp_path / "results").exists()


def test_another_preset_runs_every_study_with_its_own_variants():
    _, ran = collected(["--preset", "smoke"])
    assert [words[1] for words in ran] == [name for name in STUDIES if name != "benchmark"], (
        "that has a command of its own"
    )
    assert all("--variants" not in words and "--preset=smoke" in words for words in ran)
    (glue,) = (words for words in collected(["--preset", "gpu"])[1] if words[1] == "glue")
    assert glue[glue.index("--initial-weights") + 1] == "results/runs/gpu/mlm"


@pytest.mark.parametrize("preset", ["v0", "smoke,v0"])
def test_the_old_recipe_is_a_preset_of_every_study_those_that_train_nothing_too(preset):
    _, ran = collected(["--preset", preset, "--dry-run"])
    settings = {"speed": resolve(STUDIES["speed"].settings)}
    for words in ran:
        name = words[1]
        assert f"--preset={preset}" in words
        if name in settings:
            assert settings.pop(name)(preset, "cpu") == resolve(STUDIES[name].settings)(size_of(preset), "cpu")
        else:
            assert get_preset(preset, STUDIES[name]).config.optimizer == "adamw"
    assert not settings, "and speed is one of them"


@pytest.mark.parametrize("error", [ValueError("no data"), RunFailed("disk full")])
def test_one_that_cannot_run_does_not_keep_the_others(error, capsys):
    def status(words):
        if words[1] == "mask":
            raise error
        return 0

    code, ran = collected([], status=status)
    assert code == 1
    assert len(ran) == len(REFERENCES)
    shown = capsys.readouterr().out
    assert f"error: {error}" in shown
    assert "mask is not; the same command tries it again" in shown


@pytest.mark.parametrize("option", ["--steps", "--variants", "--out"])
def test_what_is_for_one_study_is_refused(option, capsys):
    assert main(["run", "all", option, "3"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert option in message
    assert "`run all` takes --preset" in message
