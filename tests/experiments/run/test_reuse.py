"""Runs that are taken over from another comparison instead of being trained again."""

import dataclasses
import itertools
import json
import shutil

import msgspec
import pytest

from experiments.cli import main
from experiments.commands import run_training
from experiments.config import Config
from experiments.objects import Run
from experiments.records.environment import software, versions
from experiments.records.files import write_json
from experiments.records.record import is_finished, read_comparison, run_config, run_status, write_record
from experiments.records.schema import Origin, Software
from experiments.run import reuse
from experiments.run.plan import Training
from experiments.run.reuse import take_over, trained_runs
from linear_rope import kernels

VARIANT = "elu+1-none"
RUN = Run(VARIANT, 0)
COMMAND = ["run", "convergence", "--preset", "smoke", "--steps", "4", "--evaluate-every", "4", "--variants", VARIANT]


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
    return list(take_over(training, list(runs or [RUN]), trained_runs(source, [])))


def files_of(directory):
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


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
    attention = (out / "attention.csv").read_text()
    assert f"{VARIANT},0," in attention, "the weights that were taken over can be measured"


def test_a_run_that_is_taken_over_is_whole_also_where_one_was_stopped_before_its_first_record(trained, training):
    begun = training.job(RUN).directory
    (begun / "checkpoint" / "step00000000").mkdir(parents=True)
    write_json(begun / "status.json", {"state": "queued", "reason": "stopped at step 0"})
    (begun / "checkpoint" / "step00000000" / "model.safetensors").touch()
    assert taken(training, trained) == [RUN]
    assert is_finished(training.root, VARIANT, 0, 4)
    made, source = files_of(begun), files_of(trained / "there" / VARIANT / "seed0")
    names = {str(name) for name in made}
    # Those at the end, and where the learning rate began to fall, from where it can be given more steps.
    parts = itertools.product((3, 4), ("manifest.json", "model.safetensors", "optimizer.pt"))
    weights = {f"checkpoint/step{step:08d}/{name}" for step, name in parts}
    assert names == {"config.json", "metrics.jsonl", "status.json", *weights}
    assert all(content == source[name] for name, content in made.items() if name.name != "status.json")
    assert [path.name for path in training.root.iterdir()] == [VARIANT]


def test_the_name_of_a_variant_does_not_matter(trained, training):
    named = Run(f"{VARIANT}@dim=32", 0)
    config = dataclasses.replace(training.config, dim=64)
    other = dataclasses.replace(training, config=config, settings={named.variant: {"dim": 32}})
    assert taken(other, trained, RUN, named) == [named]
    assert run_config(training.root, named.variant, 0).variant == named.variant


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"learning_rate": 0.003}},
        {"config": {"threads": 2}},
        {"data_sha256": "ab" * 32},
        {"device": "cuda"},
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


@pytest.mark.parametrize(("there", "here"), [("", "ab"), ("ab", ""), ("ab", "cd"), ("ab", "ab")])
def test_what_other_plugins_trained_is_not_taken_over(copied, training, there, here):
    """A variant, an attention or a data set may be theirs."""
    comparison = read_comparison(copied / "there")
    comparison.plugins, loaded = (
        [Origin(module="mine", package="", version="", sha256=sha256)] if sha256 else [] for sha256 in (there, here)
    )
    write_record(copied / "there" / "comparison.json", comparison)
    training = dataclasses.replace(training, plugins=loaded)
    assert bool(take_over(training, [RUN], trained_runs(copied, []))) == (there == here)


OTHER = Software(kernel="C++ for another", torch="2.13", code_sha256="ab")
MIXED = "native kernel C++ for x86-64-v3 (before: None), chunked kernel PyTorch 2.13.0"


def say(root, *trained_with, name=VARIANT):
    """What trained the run, in its own words; none: as in a record from before a run told it."""
    status = msgspec.structs.replace(run_status(root, name, 0), trained_with=list(trained_with))
    write_record(root / name / "seed0" / "status.json", status)


def change(root, **fields):
    """A comparison's record of another time."""
    write_record(root / "comparison.json", msgspec.structs.replace(read_comparison(root), **fields))


def test_a_run_says_itself_what_trained_it_also_where_it_is_taken_over(copied, training):
    change(copied / "there", versions={"torch": "1.0", "native kernel": "C++ for another"})
    assert run_status(copied / "there", *RUN).trained_with == [software("cpu")]
    assert taken(training, copied) == [RUN]
    assert run_status(training.root, *RUN).trained_with == [software("cpu")]


@pytest.mark.parametrize("field", ["kernel", "torch"])
def test_what_another_kernel_or_pytorch_trained_is_not_taken_over(copied, training, field):
    say(copied / "there", msgspec.structs.replace(software("cpu"), **{field: "another"}))
    passed_over: list[str] = []
    assert take_over(training, [RUN], trained_runs(copied, passed_over)) == {}
    assert passed_over == []


def test_a_run_of_two_kernels_is_passed_over_and_told(copied, training):
    say(copied / "there", software("cpu"), OTHER)
    passed_over: list[str] = []
    assert take_over(training, [RUN], trained_runs(copied, passed_over)) == {}
    (sentence,) = passed_over
    assert sentence.startswith(f"1 runs are not taken over from {copied / 'there'}: it was continued with another")


@pytest.mark.parametrize(
    ("there", "continued_with", "is_taken"),
    [
        (None, "", True),
        ("C++ for another", "", False),
        (None, "numpy 2.4 (before: 2.3), performer-pytorch 1.2 (before: 1.1)", True),
        (None, MIXED, False),
        (None, "torch 2.13.0 (before: 2.6.0)", False),
    ],
)
@pytest.mark.parametrize("place", ["there", "there/tuning"])
def test_of_an_older_record_it_must_be_sure_which_kernel_trained_a_run(
    trained, training, tmp_path, place, there, continued_with, is_taken
):
    """Its trials have a record of their own, and the notes stand in that of the whole."""
    source = tmp_path / "runs"
    shutil.copytree(trained / "there", source / place)
    say(source / place)
    change(source / place, versions=versions() | {"native kernel": there or kernels()["native"]})
    if place != "there":
        shutil.copy(trained / "there" / "comparison.json", source / "there")
    if continued_with:
        change(source / "there", notes=[f"continued with another set of versions: {continued_with}"])
    passed_over: list[str] = []
    assert bool(take_over(training, [RUN], trained_runs(source, passed_over))) == is_taken
    assert bool(passed_over) == (continued_with != "" and not is_taken)


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


def test_a_run_that_was_stopped_before_its_first_record_is_taken_over(trained, training):
    directory = training.root / VARIANT / "seed0"
    (directory / "checkpoint" / "step00000000").mkdir(parents=True)
    write_json(directory / "status.json", {"state": "queued", "reason": "stopped at step 0"})
    assert list(take_over(training, [RUN], trained_runs(trained, []))) == [RUN]
    assert is_finished(training.root, VARIANT, 0, 4)
    assert sorted(path.name for path in (directory / "checkpoint").iterdir()) == ["step00000003", "step00000004"]


def test_the_comparison_itself_may_be_among_those_that_are_named_and_what_has_begun_is_left_alone(copied, training):
    there = dataclasses.replace(training, root=copied / "there")
    before = files_of(copied)
    assert taken(there, copied) == []
    assert files_of(copied) == before


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("status.json", lambda content: b'{"state": "queued", "reason": "stopped at step 4"}'),
        ("metrics.jsonl", lambda content: b"".join(content.splitlines(keepends=True)[:-1])),
        ("checkpoint/step00000004/model.safetensors", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
        ("config.json", lambda content: content.replace(b'"steps"', b'"other"')),
        ("checkpoint/step00000004", None),
        ("checkpoint", None),
    ],
)
def test_what_is_not_whole_is_not_taken_over(copied, training, name, change):
    path = copied / "there" / VARIANT / "seed0" / name
    if change is None:
        shutil.rmtree(path)
    else:
        path.write_bytes(change(path.read_bytes()))
    assert taken(training, copied) == []
    assert list(training.root.iterdir()) == []


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


@pytest.mark.parametrize(
    ("name", "content"),
    [("comparison.json", "["), (f"{VARIANT}/seed0/config.json", "[]"), (f"{VARIANT}/seed0/status.json", "{")],
)
def test_a_comparison_with_a_damaged_record_is_passed_over_and_told(copied, training, name, content):
    path = copied / "there" / name
    path.write_text(content)
    passed_over: list[str] = []
    assert take_over(training, [RUN], trained_runs(copied, passed_over)) == {}
    (sentence,) = passed_over
    assert str(path) in sentence


def test_what_is_no_directory_is_refused(tmp_path, capsys):
    there = tmp_path / "file"
    there.touch()
    assert main([*COMMAND, "--out", str(tmp_path / "out"), "--reuse", str(there)]) == 2
    expected = f"error: --reuse: {there} is no directory; give one that comparisons were written to\n"
    assert capsys.readouterr().err == expected
    assert not (tmp_path / "out").exists()


def test_variants_of_another_version_are_passed_over(copied, training):
    comparison = read_comparison(copied / "there")
    comparison.variants.append(msgspec.structs.replace(comparison.variants[0], name="novel-none"))
    write_record(copied / "there" / "comparison.json", comparison)
    shutil.copytree(copied / "there" / VARIANT, copied / "there" / "novel-none")
    config = copied / "there" / "novel-none" / "seed0" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"variant": "novel-none"}))
    assert taken(training, copied) == [RUN]
