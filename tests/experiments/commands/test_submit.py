"""``benchmark submit`` and ``benchmark report``: from a plugin to the table; what is refused."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.commands.submit import ABOUT, write_submission
from experiments.records.environment import ROOT
from tests.made_up import DATA, quick

pytest.importorskip("pyarrow")
THEIRS = "softplus-squared-rope-after"
CODE = {"module": "m", "package": "", "version": "", "sha256": "ab"}


def reported(directory, *files):
    words = [str(file) if str(file).startswith("--") else f"--submitted={file}" for file in files]
    return main(["benchmark", "report", str(directory), *words])


@pytest.fixture
def benchmark(make_comparison, tmp_path):
    """Two seeds of one task as if they had been trained; the directory of all tasks."""
    make_comparison(tmp_path / "v1/language", "softmax-rope,elu+1-none", 2, experiment="benchmark")
    return tmp_path / "v1"


@pytest.fixture
def submission(make_comparison, tmp_path):
    """Writes the file of a variant that was trained as that, but for what is given."""

    def make(name="theirs.zip", variant="relu-rope-after", parameters=1000, seeds=2, **other):
        work = tmp_path / f"{name}.runs"
        fields = {"experiment": "benchmark", "plugins": [CODE]}
        record = make_comparison(work / "language", variant, seeds, **fields | other) / "comparison.json"
        record.write_text(record.read_text().replace('"parameters": 1000', f'"parameters": {parameters}'))
        write_submission(work, ["language"], variant, tmp_path / name)
        return tmp_path / name

    return make


def rewritten(path: Path, change, compression=zipfile.ZIP_STORED) -> Path:
    """The same zip with other files: ``change`` gets them by name."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_submitted_variants_are_in_the_table_and_marked(benchmark, submission, capsys):
    before = {path: path.read_bytes() for path in benchmark.rglob("*") if path.is_file()}
    others = submission("others.zip", "relu-none")
    assert reported(benchmark, submission(), others) == 0
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    row = next(number for number, line in enumerate(said) if line.startswith("relu-rope-after  2 "))
    assert said[row + 1].startswith("[submitted]")
    assert said.count("[submitted]") == 2
    assert "relu-rope-after (theirs.zip), relu-none (others.zip)." in " ".join(said)
    assert {path: path.read_bytes() for path in benchmark.rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("quickly")
def test_further_seeds_of_a_submission_are_no_missing_runs_of_the_others(benchmark, submission, tmp_path, capsys):
    assert reported(benchmark, submission(seeds=3), f"--out={tmp_path / 'merged'}") == 0
    said = capsys.readouterr().out
    assert re.search("softmax-rope +2 ", said)
    assert "queued" not in said + (tmp_path / "merged/language/report.md").read_text()


def test_code_that_was_changed_between_seeds_makes_no_file(submission, tmp_path):
    with pytest.raises(ValueError, match="the code of relu-rope-after was changed while it was trained"):
        submission(plugins=[CODE, CODE | {"sha256": "cd"}])
    assert not (tmp_path / "theirs.zip").exists()


def test_equal_records_give_equal_files_that_name_code_and_machine(submission, tmp_path):
    path = submission()
    write_submission(tmp_path / "theirs.zip.runs", ["language"], "relu-rope-after", tmp_path / "again.zip")
    assert path.read_bytes() == (tmp_path / "again.zip").read_bytes()
    with zipfile.ZipFile(path) as archive:
        about = json.loads(archive.read(ABOUT))
        assert {*archive.namelist()} == {ABOUT, *about["files"]}
    assert about["plugins"][0]["sha256"] == "ab"
    assert (about["version"], about["machine"]["cpu"]) == ("v1", "a processor")


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"steps": 80}, "steps (100 there, 80 now)"),
        ({"data": [DATA | {"sha256": "cd" * 32}]}, f"text ({'ab' * 32} there, {'cd' * 32} now)"),
        ({"learning_rates": [0.1]}, "learning rates ([] there, [0.1] now)"),
        ({"variant": "softmax-rope"}, "softmax-rope is there already"),
        ({"variant": "favor+-rope-after@num_features=8"}, "it sets num_features"),
        ({"parameters": 1011}, "it has 1,011 parameters, and softmax-rope 1,000"),
    ],
)
def test_what_was_trained_otherwise_is_refused(benchmark, submission, capsys, other, reason):
    assert reported(benchmark, submission(**other)) == 2
    said = capsys.readouterr()
    assert "theirs.zip cannot be merged, as in language it is not as the others: " in said.err
    assert reason in said.err
    assert "relu" not in said.out


def changed_version(files):
    files[ABOUT] = files[ABOUT].replace(b'"v1"', b'"v2"')


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (changed_version, "is of benchmark v2, and this is v1"),
        (lambda files: files.pop("language/runs.parquet"), "is damaged: its files are not those that it names"),
        (lambda files: files.pop(ABOUT), "submission.json is not JSON"),
        (lambda files: files.update({"../x.json": b"{}"}), "holds '../x.json', which is no file of a task"),
        (lambda files: files.update({"language/../../x.json": b""}), "which is no file of a task"),
        (lambda files: files.update({"my-task/runs.parquet": b""}), "holds 'my-task/runs.parquet', which is no file"),
    ],
)
def test_damaged_and_strange_files_are_refused_and_write_nothing(
    benchmark, submission, tmp_path, capsys, change, reason
):
    path = rewritten(submission(), change)
    assert reported(benchmark, path) == 2
    assert reason in capsys.readouterr().err
    assert not [*tmp_path.rglob("x.json")]


def emptied(files):
    about = json.loads(files[ABOUT]) | {"files": {}}
    files.clear()
    files[ABOUT] = json.dumps(about).encode()


def cut(path):
    path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: rewritten(path, emptied), "theirs.zip holds no task"),
        (lambda path: rewritten(path, dict, zipfile.ZIP_BZIP2), "theirs.zip is compressed in another way than ours"),
        (cut, "is no submission, or a damaged one"),
        (Path.unlink, "theirs.zip cannot be read (there is no such file)"),
    ],
)
def test_a_refused_file_leaves_no_report_behind(benchmark, submission, tmp_path, capsys, damage, reason):
    path = submission()
    damage(path)
    assert reported(benchmark, path, f"--out={tmp_path / 'merged'}") == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--variant=softmax-rope"], "is one of benchmark v1 itself"),
        (["--variant=relu-none@learning_rate=0.1"], "has a learning rate, and benchmark v1 searches it"),
        (["--variant=relu-none@dim=64"], "sets dim, which benchmark v1 has frozen"),
        (["--variant=relu-none", "--task=copyin"], "there is no task 'copyin'; did you mean 'copying'?"),
        (["--variant=relu-none", "--task=copying,cost"], "--task cost tells nothing of a variant of your own"),
        (["--variant=relu-none", "--out=there.zip"], "--out there.zip is there already"),
        (["--variant=relu-none", "--seeds=0"], "--seeds is 0"),
    ],
)
def test_what_could_not_be_merged_is_not_trained(tmp_path, capsys, monkeypatch, words, reason):
    monkeypatch.chdir(tmp_path)
    Path("there.zip").touch()
    assert main(["benchmark", "submit", "--plugin=json", "--preset=smoke", "--out=new.zip", *words]) == 2
    assert reason in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["there.zip"]


@pytest.mark.slow
def test_a_variant_from_outside_goes_the_whole_way(tmp_path, capsys):
    """Its plugin is needed where it is trained, and not where it is shown."""
    words = ["benchmark", "submit", "--plugin=tests.outside_variant", f"--variant={THEIRS}", "--preset=smoke"]
    words += ["--task=parity-16", "--seeds=1", "--out=theirs.zip"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    told = subprocess.check_output([sys.executable, "-m", "experiments", *words], cwd=tmp_path, env=environment)
    assert told.index(b"hours of one core") < told.index(b"seed 0: started")
    run = ["run", "benchmark", "--preset=smoke", "--workers=1", "--task=parity-16", "--variants=softmax-rope"]
    with quick():
        assert main([*run, f"--out={tmp_path / 'smoke'}"]) == 0
        capsys.readouterr()
        out = tmp_path / "merged"
        files = [f"--submitted={tmp_path / 'theirs.zip'}", f"--out={out}"]
        assert main(["benchmark", "report", str(tmp_path / "smoke"), *files]) == 0
    said = capsys.readouterr().out
    assert f"{THEIRS}  1 " in said
    assert "[submitted]" in said
    assert "[submitted]" in (out / "parity-16/report.md").read_text()
    record = json.loads((tmp_path / "theirs.zip.runs/parity-16/comparison.json").read_text())
    assert "experiments benchmark submit " in record["command"]
    assert f"--variant={THEIRS} " in record["command"]
    # The benchmark at full size takes none of a test's.
    assert reported(ROOT / "results/benchmark/v1", tmp_path / "theirs.zip") == 2
    assert "theirs.zip is of the size smoke, and here are runs of cpu" in capsys.readouterr().err
