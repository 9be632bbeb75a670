"""Runs that are taken over from another comparison instead of being trained again."""

import dataclasses
import json
import os
import shutil

import msgspec
import pytest

from experiments.cli import main
from experiments.config import Config
from experiments.objects import Run
from experiments.records.environment import software
from experiments.records.files import write_json
from experiments.records.record import is_finished, read_comparison, run_config, run_status, write_record
from experiments.records.schema import Origin, Software
from experiments.run import reuse
from experiments.run.plan import Training
from experiments.run.reuse import reusable_runs, take_over
from tests.made_up import quick

VARIANT = "elu+1-none"
RUN = Run(VARIANT, 0)
COMMAND = ["run", "convergence", "--preset", "smoke", "--steps", "4", "--evaluate-every", "4", "--variants", VARIANT]
OTHER = Software(kernel="C++ for another", torch="2.13", code_sha256="ab")
REPLACE = os.replace
MINE = Origin(module="mine", package="", version="", sha256="ab")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of comparisons in which one of a single finished run is."""
    root = tmp_path_factory.mktemp("runs")
    with quick():
        assert main([*COMMAND, "--out", str(root / "there"), "--seeds", "1"]) == 0
    return root


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "runs")


@pytest.fixture
def training(trained, tmp_path):
    """What would train, in a new directory, the very run that there is."""
    comparison = read_comparison(trained / "there")
    (tmp_path / "here").mkdir()
    return Training(tmp_path / "here", Config(**comparison.config), None, None, comparison.data[0].sha256, "cpu")


def taken(training, source, *runs):
    """The runs that are taken over from a directory of comparisons."""
    return list(take_over(training, list(runs or [RUN]), reusable_runs(source, [])))


def files_of(directory):
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def say(root, *trained_with):
    """What trained the run; none: as in a record from before a run told it."""
    status = msgspec.structs.replace(run_status(root, VARIANT, 0), trained_with=list(trained_with))
    write_record(root / VARIANT / "seed0" / "status.json", status)


def of_other_code():
    return msgspec.structs.replace(software("cpu"), code_sha256="ab")


@pytest.mark.usefixtures("quickly")
def test_a_run_takes_over_what_is_there_and_trains_the_rest(copied, tmp_path, capsys):
    say(copied / "there", of_other_code())
    out = tmp_path / "out"
    assert main([*COMMAND, "--out", str(out), "--seeds", "2", "--reuse", str(copied)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"{RUN}: taken over from {copied / 'there'} ({RUN})" in told
    assert "1 of 2 runs are done already" in told
    (note,) = run_status(out, VARIANT, 0).notes
    commit = read_comparison(copied / "there").git.commit
    assert note == f"taken over from there, {RUN}, trained there at commit {commit[:12]}"
    report = (out / "report.md").read_text()
    assert note in report
    assert f"some runs were trained with other code: {RUN}" in report
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
    before = files_of(training.root)
    assert taken(training, trained) == [], "what has begun is left alone"
    assert files_of(training.root) == before


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


def add_as(there, name):
    """The same run as one of another variant."""
    comparison = read_comparison(there)
    comparison.variants.append(msgspec.structs.replace(comparison.variants[0], name=name))
    write_record(there / "comparison.json", comparison)
    shutil.copytree(there / VARIANT, there / name)
    config = there / name / "seed0" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"variant": name}))


def test_hybrids_that_differ_within_their_layers_are_not_taken_for_each_other(copied, training):
    hybrids = [Run(name, 0) for name in ("hybrid-3to1-rope", "hybrid-3to1-rope@decay=gate")]
    add_as(copied / "there", hybrids[0].variant)
    assert taken(training, copied, *hybrids) == hybrids[:1]


WEIGHTS = "checkpoint/step00000004/model.safetensors"


@pytest.mark.parametrize(
    ("change", "is_taken"),
    [
        (lambda there: add_as(there, "novel-none"), True),  # a variant that this version does not have
        (lambda there: say(there, of_other_code()), True),
        (lambda there: say(there, msgspec.structs.replace(software("cpu"), kernel="another")), False),
        (lambda there: say(there, software("cpu"), OTHER), False),
        (say, False),
        (changed("status.json", lambda content: b'{"state": "queued", "reason": "stopped at step 4"}'), False),
        (changed("metrics.jsonl", lambda content: content[: content[:-1].rfind(b"\n") + 1]), False),
        (changed(WEIGHTS, lambda content: content[:-1] + bytes([content[-1] ^ 1])), False),
        (changed("config.json", lambda content: content.replace(b'"steps"', b'"other"')), False),
        (lambda there: shutil.rmtree(there / VARIANT / "seed0" / "checkpoint/step00000004"), False),
    ],
)
def test_only_what_is_whole_and_made_by_the_same_software_is_taken_over(copied, training, change, is_taken):
    change(copied / "there")
    assert bool(taken(training, copied)) == is_taken
    assert bool([*training.root.iterdir()]) == is_taken


@pytest.mark.parametrize(("before", "is_told"), [([OTHER], True), ([], False)])
def test_a_run_that_goes_on_with_another_kernel_says_it(copied, before, is_told):
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


def test_a_take_over_that_is_killed_leaves_nothing_and_is_begun_anew(trained, training, monkeypatch):
    """Killed as the run is renamed into its place; nothing is tidied up."""

    def rename(source, to):
        if os.path.isdir(source):
            raise KeyboardInterrupt
        REPLACE(source, to)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", rename)
        patch.setattr(reuse.shutil, "rmtree", lambda path, ignore_errors=False: None)
        with pytest.raises(KeyboardInterrupt):
            taken(training, trained)
    assert not (training.root / VARIANT / "seed0").exists()
    assert taken(training, trained) == [RUN]
    assert [path.name for path in training.root.iterdir()] == [VARIANT]


def test_a_comparison_with_a_damaged_record_is_passed_over_and_told(copied, training):
    path = copied / "there" / VARIANT / "seed0/status.json"
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
