"""Runs that are taken over from another comparison instead of being trained again."""

import dataclasses
import json
import shutil

import msgspec
import pytest

from experiments.cli import main
from experiments.commands import run_training
from experiments.config import Config
from experiments.objects import Run
from experiments.records.environment import software
from experiments.records.files import write_json
from experiments.records.record import is_finished, read_comparison, run_config, run_status, write_record
from experiments.records.schema import Origin, Software
from experiments.run import reuse
from experiments.run.plan import Training
from experiments.run.reuse import reusable_runs, take_over

VARIANT = "elu+1-none"
RUN = Run(VARIANT, 0)
COMMAND = ["run", "convergence", "--preset", "smoke", "--steps", "4", "--evaluate-every", "4", "--variants", VARIANT]
OTHER = Software(kernel="C++ for another", torch="2.13", code_sha256="ab")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of comparisons in which one of a single finished run is."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:  # figures take most of the time of so small a run
        patch.setattr(run_training, "write_report", lambda there, study: there / "report.html")
        assert main([*COMMAND, "--out", str(root / "there"), "--seeds", "1"]) == 0
    return root


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "runs")


@pytest.fixture
def training(trained, tmp_path):
    """What would train, in a new directory, the very run that there is."""
    comparison = read_comparison(trained / "there")
    sha256 = comparison.data[0].sha256
    (tmp_path / "here").mkdir()
    return Training(tmp_path / "here", Config(**comparison.config), None, None, sha256, "cpu")


def taken(training, source, *runs):
    """The runs that are taken over from a directory of comparisons."""
    return list(take_over(training, list(runs or [RUN]), reusable_runs(source, [])))


def files_of(directory):
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def say(root, *trained_with):
    """What trained the run; none: as in a record from before a run told it."""
    status = msgspec.structs.replace(run_status(root, VARIANT, 0), trained_with=list(trained_with))
    write_record(root / VARIANT / "seed0" / "status.json", status)


@pytest.mark.usefixtures("no_pictures")
def test_a_run_takes_over_what_is_there_and_trains_the_rest(trained, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([*COMMAND, "--out", str(out), "--seeds", "2", "--reuse", str(trained)]) == 0
    told = capsys.readouterr().out
    assert f"{RUN}: taken over from {trained / 'there'} ({RUN})" in " ".join(told.split())
    assert "1 of 2 runs are done already" in told
    (note,) = run_status(out, VARIANT, 0).notes
    commit = read_comparison(trained / "there").git.commit
    assert note == f"taken over from there, {RUN}, trained there at commit {commit[:12]}"
    assert note in (out / "report.md").read_text()
    assert run_status(out, VARIANT, 1).notes == []
    assert f"{VARIANT},0," in (out / "attention.csv").read_text(), "the weights that were taken over can be measured"


def test_a_run_that_is_taken_over_is_whole_also_where_one_was_stopped_before_its_first_record(trained, training):
    begun = training.job(RUN).directory
    (begun / "checkpoint" / "step00000000").mkdir(parents=True)
    write_json(begun / "status.json", {"state": "queued", "reason": "stopped at step 0"})
    assert taken(training, trained) == [RUN]
    assert is_finished(training.root, VARIANT, 0, 4)
    made, source = files_of(begun), files_of(trained / "there" / VARIANT / "seed0")
    assert all(content == source[name] for name, content in made.items() if name.name != "status.json")
    # Those at the end, and where the learning rate began to fall, from where it can be given more steps.
    assert sorted(path.name for path in (begun / "checkpoint").iterdir()) == ["step00000003", "step00000004"]
    assert [path.name for path in training.root.iterdir()] == [VARIANT]
    assert run_status(training.root, *RUN).trained_with == [software("cpu")]


def test_the_name_of_a_variant_does_not_matter(trained, training):
    named = Run(f"{VARIANT}@dim=32", 0)
    config = dataclasses.replace(training.config, dim=64)
    other = dataclasses.replace(training, config=config, settings={named.variant: {"dim": 32}})
    assert taken(other, trained, RUN, named) == [named]
    assert run_config(training.root, named.variant, 0).variant == named.variant


MINE = Origin(module="mine", package="", version="", sha256="ab")


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"learning_rate": 0.003}},
        {"config": {"threads": 2}},
        {"data_sha256": "ab" * 32},
        {"device": "cuda"},
        {"plugins": [MINE]},
        {"run": Run(VARIANT, 1)},
        {"run": Run("elu+1-rope-after", 0)},
    ],
    ids=lambda change: str(*change.values()),
)
def test_what_differs_in_anything_is_not_taken_over(trained, training, change):
    run = change.pop("run", RUN)
    config = dataclasses.replace(training.config, **change.pop("config", {}))
    assert taken(dataclasses.replace(training, config=config, **change), trained, run) == []
    assert list(training.root.iterdir()) == []


def changed(name, change):
    """Changes a file of the run that is there."""

    def make(there):
        path = there / VARIANT / "seed0" / name
        path.write_bytes(change(path.read_bytes()))

    return make


def removed(name):
    return lambda there: shutil.rmtree(there / VARIANT / "seed0" / name)


def another_version(there):
    """With a variant that this one does not have."""
    comparison = read_comparison(there)
    comparison.variants.append(msgspec.structs.replace(comparison.variants[0], name="novel-none"))
    write_record(there / "comparison.json", comparison)
    shutil.copytree(there / VARIANT, there / "novel-none")
    config = there / "novel-none" / "seed0" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"variant": "novel-none"}))


def plugins(there):
    write_record(there / "comparison.json", msgspec.structs.replace(read_comparison(there), plugins=[MINE]))


WEIGHTS = "checkpoint/step00000004/model.safetensors"


@pytest.mark.parametrize(
    ("change", "is_taken"),
    [
        (another_version, True),
        (lambda there: say(there, msgspec.structs.replace(software("cpu"), code_sha256="ab")), True),
        (lambda there: say(there, msgspec.structs.replace(software("cpu"), kernel="another")), False),
        (lambda there: say(there, msgspec.structs.replace(software("cpu"), torch="another")), False),
        (lambda there: say(there, software("cpu"), OTHER), False),
        (say, False),
        (plugins, False),
        (changed("status.json", lambda content: b'{"state": "queued", "reason": "stopped at step 4"}'), False),
        (changed("metrics.jsonl", lambda content: content[: content[:-1].rfind(b"\n") + 1]), False),
        (changed(WEIGHTS, lambda content: content[:-1] + bytes([content[-1] ^ 1])), False),
        (changed("config.json", lambda content: content.replace(b'"steps"', b'"other"')), False),
        (removed("checkpoint/step00000004"), False),
        (removed("checkpoint"), False),
    ],
)
def test_only_what_is_whole_and_made_by_the_same_software_is_taken_over(copied, training, change, is_taken):
    change(copied / "there")
    assert bool(taken(training, copied)) == is_taken
    assert bool([*training.root.iterdir()]) == is_taken


@pytest.mark.usefixtures("no_pictures")
def test_a_comparison_notes_which_runs_something_else_trained_than_its_record_names(copied):
    """As of a worker on a machine without a compiler."""
    root, here = copied / "there", software("cpu")
    command = [*COMMAND, "--out", str(root), "--seeds", "1"]
    assert main(command) == 0
    assert read_comparison(root).notes == []
    say(root, OTHER)
    assert main(command) == 0
    (note,) = read_comparison(root).notes
    told = f"kernel {OTHER.kernel} (this record: {here.kernel}), torch 2.13 (this record: {here.torch}), other code"
    assert note == f"some runs were trained with {told}: {VARIANT} seed 0"
    assert note in (root / "report.md").read_text()


@pytest.mark.parametrize(("before", "is_told"), [([OTHER], True), ([], False)])
def test_a_run_that_goes_on_with_another_kernel_notes_it(copied, before, is_told):
    """What an older record was begun with is not known."""
    root = copied / "there"
    directory = root / VARIANT / "seed0"
    rows = (directory / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (directory / "metrics.jsonl").write_bytes(b"".join(rows[:-1]))
    write_json(directory / "status.json", {"state": "queued", "trained_with": msgspec.to_builtins(before)})
    assert main(["train", str(directory)]) == 0
    status, here = run_status(root, *RUN), software("cpu")
    assert status.state == "done"
    assert status.trained_with == ([OTHER, here] if is_told else [])
    told = f"went on with kernel {here.kernel} (before: {OTHER.kernel}), torch {here.torch} (before: 2.13), other code"
    assert [note for note in status.notes if note.startswith("went on")] == [told] * is_told


def test_what_has_begun_in_the_comparison_itself_is_left_alone(copied, training):
    before = files_of(copied)
    assert taken(dataclasses.replace(training, root=copied / "there"), copied) == []
    assert files_of(copied) == before


class Killed(BaseException):
    pass


@pytest.mark.parametrize("at", range(7))
def test_a_take_over_that_is_killed_leaves_nothing_and_is_begun_anew(trained, training, monkeypatch, at):
    """Killed at each rename of a file into its place, six of them, then of the run; nothing is tidied up."""
    renamed = []

    def rename(source, target):
        if len(renamed) == at:
            raise Killed
        renamed.append(target)
        replace(source, target)

    replace = reuse.os.replace
    with monkeypatch.context() as patch:
        patch.setattr(reuse.os, "replace", rename)
        patch.setattr(reuse.shutil, "rmtree", lambda path, ignore_errors=False: None)
        with pytest.raises(Killed):
            taken(training, trained)
    assert not (training.root / VARIANT / "seed0").exists()
    assert taken(training, trained) == [RUN]
    assert [path.name for path in training.root.iterdir()] == [VARIANT]


@pytest.mark.parametrize("name", ["comparison.json", f"{VARIANT}/seed0/config.json", f"{VARIANT}/seed0/status.json"])
def test_a_comparison_with_a_damaged_record_is_passed_over_and_told(copied, training, name):
    path = copied / "there" / name
    path.write_text("[")
    passed_over: list[str] = []
    assert take_over(training, [RUN], reusable_runs(copied, passed_over)) == {}
    (sentence,) = passed_over
    assert str(path) in sentence


def test_what_is_no_directory_is_refused(tmp_path, capsys):
    there = tmp_path / "file"
    there.touch()
    assert main([*COMMAND, "--out", str(tmp_path / "out"), "--reuse", str(there)]) == 2
    expected = f"error: --reuse: {there} is no directory; give one that comparisons were written to\n"
    assert capsys.readouterr().err == expected
    assert not (tmp_path / "out").exists()
