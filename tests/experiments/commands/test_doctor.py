"""What the list, data and doctor commands print."""

import shlex
from importlib import metadata
from pathlib import Path

import pytest

from experiments import console
from experiments.commands.catalogue import list_data
from experiments.commands.doctor import doctor, requirements
from experiments.data.registry import DATA_SETS
from experiments.judge.references import command
from linear_rope import kernels

PROJECT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def clean_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("LINEAR_ROPE_DATA", raising=False)
    monkeypatch.setenv("LINEAR_ROPE_CACHE", str(tmp_path / "cache"))


def section(text, name):
    """The lines about one data set."""
    (lines,) = (part for part in text.split("\n\n") if part.split()[0] == name)
    return lines


def test_data_says_what_is_here_and_what_is_not(tmp_path, capsys):
    data_dir = tmp_path / "[data]"
    data_dir.mkdir()
    list_data(data_dir)
    without = capsys.readouterr().out
    (data_dir / "enwik8.gz").touch()
    list_data(data_dir)
    with_file = capsys.readouterr().out
    assert "[data]" in with_file
    for name, data_set in DATA_SETS.items():
        generated = ("recall", "copying", "induction", "parity", "s3", "a5", "s5", "numerals", "late")
        always_here = name.split("-")[0] in ("stdlib", *generated)
        assert ("not here: " in section(without, name)) == (not always_here)
        assert ("not here: " in section(with_file, name)) == (not always_here and "enwik8" not in name)
        assert data_set.url is None or data_set.url in section(without, name)
        if not always_here and name != "text":
            assert data_set.licence, name
            assert data_set.size, name
            assert data_set.fetch, name
        assert data_set.licence in " ".join(section(without, name).split())
    assert "stdlib (default)" in without
    address = "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"
    assert f"-o {shlex.quote(str(data_dir))}/glue/SST-2.zip \\\n      {address}\n" in with_file
    list_data(None)
    assert f"-o DIR/glue/SST-2.zip \\\n      {address}\n" in capsys.readouterr().out
    assert not (tmp_path / "cache").exists()


def test_doctor_passes_this_machine(tmp_path, capsys):
    runs = tmp_path / "results" / "runs"
    assert doctor(runs=runs) == 0
    text = capsys.readouterr().out
    for expected in ("Python", "cores", "memory", "CUDA", "performer-pytorch", *DATA_SETS, "\n\nResults\n", "written"):
        assert expected in text
    words = " ".join(text.split())
    assert all(f"{name} kernel {kernels()[name]}" in words for name in ("native", "triton"))
    assert f"cache directory {tmp_path / 'cache'}" in words.replace("\n", "")
    assert "This machine can run the presets smoke" in text
    assert "Missing" not in text
    assert list(tmp_path.iterdir()) == []
    assert {"torch", "performer-pytorch"} <= {*requirements()}


@pytest.mark.parametrize(("here", "remedy"), [(True, f"-c constraints.txt -e . in {PROJECT}"), (False, "no-such")])
def test_doctor_names_what_is_missing_and_the_fix_where_the_project_is(here, remedy, tmp_path, monkeypatch, capsys):
    if not here:
        monkeypatch.setattr(console, "CHECKOUT", tmp_path)
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr("experiments.commands.doctor.requirements", lambda: ["numpy", "no-such"])
    assert doctor(tmp_path / "absent", file / "runs") == 1
    package, data_dir, runs = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Missing: "))
    assert package.startswith("Missing: the package no-such (")
    assert package.endswith(f"; run pip install {remedy}")
    assert "--data-dir" in data_dir
    assert "--out DIR" in runs
    assert command("mask").startswith("python -m experiments run" if here else "linear-rope run")


@pytest.mark.parametrize("gpus", [[], ["A GPU (80 GiB)"]])
def test_doctor_says_which_presets_run_and_what_some_studies_need(gpus, monkeypatch, capsys):
    def version(name):
        if name == "sacrebleu":
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr("experiments.commands.doctor.of_torch", lambda: (gpus, {}))
    monkeypatch.setattr("experiments.commands.doctor.metadata.version", version)
    monkeypatch.setattr("experiments.commands.doctor.requirements", lambda: ["numpy", "rich"])
    assert doctor() == 0
    said = capsys.readouterr().out
    last, words = said.splitlines()[-1], " ".join(said.split())
    assert ("need a CUDA GPU" in last) == (not gpus)
    assert all(preset in last for preset in ("smoke", "cpu", "gpu", "paper"))
    assert "sacrebleu missing, needed by run translation: pip install" in words
    assert "torchdiffeq 1.0" in words
