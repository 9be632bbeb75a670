import json
import shutil

import msgspec
import pytest

from experiments.config import Config
from experiments.records import environment
from experiments.records.files import write_json
from experiments.records.record import read_comparison, run_directory, write_record
from experiments.records.schema import Comparison
from experiments.records.store import commands_of, merge_with_existing
from experiments.report.report import write_report
from experiments.show.rows import read_rows
from experiments.studies.registry import STUDIES
from tests.made_up import DATA

GIT = {"commit": "0123abcd" * 5, "dirty": False, "code_sha256": "aa"}


@pytest.fixture
def there(make_comparison, tmp_path):
    """The directory of a finished comparison."""
    return make_comparison(tmp_path / "made-up", "elu+1-none,elu+1-rope-after", git=GIT)


def now(root, **changes):
    """The same comparison, run again with changes."""
    return msgspec.convert(msgspec.to_builtins(read_comparison(root)) | {"notes": []} | changes, Comparison)


def test_the_same_again_is_the_same(there):
    assert merge_with_existing(there, now(there)) == read_comparison(there)


def test_what_differs_is_refused_with_both_values_of_all_of_it(there):
    config = now(there).config
    changed = {**config, "learning_rate": 0.5, "steps": 7, "novelty": True}
    del changed["dim"]  # as in a record from before there was such a setting: it counts as the default
    objective = msgspec.to_builtins(now(there).objective) | {"vocabulary": 300, "classes": ["good"]}
    with pytest.raises(ValueError, match="holds a comparison that differs in") as refusal:
        merge_with_existing(there, now(there, config=changed, data=[DATA | {"sha256": "cd" * 32}], objective=objective))
    for difference in (
        "learning_rate (0.002 there, 0.5 now)",
        "steps (100 there, 7 now)",
        "novelty (nothing there, True now)",
        "sha256 abababababab... there, sha256 cdcdcdcdcdcd... now",
        "the objective's vocabulary (256 there, 300 now)",
        "the objective's classes ([] there, ['good'] now)",
    ):
        assert difference in str(refusal.value)
    assert config["dim"] == Config().dim
    assert "dim (" not in str(refusal.value)


@pytest.mark.parametrize(
    ("seed", "change", "difference"),
    [
        (1, {"config": {"learning_rate": 0.5}}, r" holds .*learning_rate \(0.5 there, 0.002 now\)"),
        (1, {"data_sha256": "cd" * 32}, r" holds .*sha256 cdcdcdcdcdcd\.\.\. there"),
        (1, None, " has records and no config.json"),
        (3, None, " has records and no config.json"),  # new to the comparison
    ],
)
def test_a_run_that_was_copied_from_another_comparison_is_refused(there, seed, change, difference):
    directory = run_directory(there, "elu+1-none", seed)
    shutil.copytree(run_directory(there, "elu+1-none", 0), directory, dirs_exist_ok=True)
    path = directory / "config.json"
    made_with = json.loads(path.read_text()) | {"seed": seed}
    path.unlink()
    if change is not None:
        write_json(path, made_with | change | {"config": made_with["config"] | change.get("config", {})})
    with pytest.raises(ValueError, match=rf"elu\+1-none/seed{seed}{difference}"):
        merge_with_existing(there, now(there, seeds=[0, 1, 2, 3]))
    if seed == 1:
        for read in (write_report, read_rows):
            with pytest.raises(ValueError, match=rf"elu\+1-none/seed1{difference}"):
                read(there, STUDIES["convergence"])
        assert not (there / "report.html").exists()


def test_a_gpu_does_not_go_on_with_what_a_cpu_began(there):
    machine = {"device": "NVIDIA H100"}
    assert merge_with_existing(there, now(there, machine=machine)).machine["device"] == "cpu", "nothing to train"
    with pytest.raises(ValueError, match=r"the device \(cpu there, NVIDIA H100 now\)"):
        merge_with_existing(there, now(there, machine=machine, seeds=[0, 1, 2, 3]))


def test_a_variant_of_another_version_is_refused(there):
    comparison = now(there)
    comparison.variants[0].name = "novel-rope"
    write_record(there / "comparison.json", comparison)
    with pytest.raises(ValueError, match="variants that this version does not have: novel-rope"):
        merge_with_existing(there, comparison)


@pytest.mark.parametrize(
    ("git", "said"),
    [
        (
            {"commit": "f" * 40, "code_sha256": "bb"},
            ["commit ffffffffffff, begun with 0123abcd0123; what was measured"],
        ),
        ({"commit": "f" * 40}, ["commit ffffffffffff, begun with 0123abcd0123; the files of the code are the same"]),
        ({"dirty": True, "code_sha256": "bb"}, ["commit 0123abcd0123 with uncommitted changes, begun with"]),
        ({}, []),
    ],
)
def test_code_that_changed_since_is_noted(there, git, said):
    notes = merge_with_existing(there, now(there, git=GIT | git)).notes
    assert len(notes) == len(said)
    assert all(words in note for words, note in zip(said, notes, strict=True))
    older = {name: GIT[name] for name in ("commit", "dirty")}  # of a record from before the code was hashed
    write_record(there / "comparison.json", now(there, git=older))
    assert bool(merge_with_existing(there, now(there, git=GIT | git)).notes) == bool(said)


def test_versions_and_machine_are_told_when_something_is_still_to_be_run(there):
    status = run_directory(there, "elu+1-none", 1) / "status.json"
    status.write_text(json.dumps({"state": "queued", "reason": None}))
    machine = {**now(there).machine, "cores": 64}
    versions = {"torch": "9", "native kernel": "C++ for x86-64-v3", "triton kernel": "one more is proved"}
    merged = merge_with_existing(there, now(there, machine=machine, versions=versions))
    assert merged.notes == [
        "continued with another set of versions: torch 9 (before: 2.13.0), "
        "native kernel C++ for x86-64-v3 (before: None)",
        "continued with another machine: cores 64 (before: 2)",
    ]


@pytest.mark.usefixtures("no_pictures")
def test_a_report_shows_the_commands_that_made_what_it_shows(there):
    """Not the first one of the directory, when the runs it made are a part of those that are shown."""

    def shown(command, **changes):
        merged = merge_with_existing(there, now(there, command=command, **changes))
        write_record(there / "comparison.json", merged)
        return commands_of(merged)

    first = read_comparison(there).command
    more = msgspec.to_builtins(read_comparison(there).variants[0]) | {"name": "softmax-none"}
    git = GIT | {"commit": "f" * 40}
    assert shown("run --variants softmax-none", variants=[more], git=git) == [first, "run --variants softmax-none"]
    write_report(there, STUDIES["convergence"])
    assert f"{first}\nrun --variants softmax-none" in (there / "report.md").read_text()
    (note,) = [note for note in read_comparison(there).notes if "state of the code" in note]
    assert f'<p class="warning">{note}</p>' in (there / "report.html").read_text()
    assert shown("run --seeds 9", seeds=[*range(9)]) == ["run --seeds 9"]


def test_the_hash_of_the_code_covers_what_can_change_a_number_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    hashes = [environment.git().code_sha256]
    counted = ("linear_rope/features/favor.py", "experiments/train/loop.py", "experiments/config.py")
    for name in (*counted, "experiments/show/rows.py", "experiments/studies/length/claims.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a change")
        hashes.append(environment.git().code_sha256)
    assert len(set(hashes)) == 4
    assert len(set(hashes[3:])) == 1
