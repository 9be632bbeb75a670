import json

import msgspec
import pytest

from experiments.config import Config
from experiments.records import environment
from experiments.records.files import write_json
from experiments.records.record import read_comparison, run_directory, write_record
from experiments.records.schema import Comparison
from experiments.records.store import merge_with_existing
from experiments.report.report import write_report
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
    with pytest.raises(ValueError, match="holds a comparison that differs in") as refusal:
        merge_with_existing(there, now(there, config=changed, data=[DATA | {"sha256": "cd" * 32}]))
    for difference in (
        "learning_rate (0.002 there, 0.5 now)",
        "steps (100 there, 7 now)",
        "novelty (nothing there, True now)",
        "sha256 abababababab... there, cdcdcdcdcdcd... now",
    ):
        assert difference in str(refusal.value)
    assert config["dim"] == Config().dim
    assert "dim (" not in str(refusal.value)


@pytest.mark.parametrize("seed", [1, 3], ids=["in the comparison", "new to it"])
@pytest.mark.parametrize(
    ("sha256", "rate", "difference"),
    [
        ("ab" * 32, 0.5, r"learning_rate \(0.5 there, 0.002 now\)"),
        ("cd" * 32, 0.002, r"sha256 cdcdcdcdcdcd\.\.\. there"),
    ],
)
def test_a_run_that_was_copied_from_another_comparison_is_refused(there, seed, sha256, rate, difference):
    config = now(there).config | {"learning_rate": rate}
    directory = run_directory(there, "elu+1-none", seed)
    directory.mkdir(exist_ok=True)
    run = {"variant": "elu+1-none", "seed": seed, "data_sha256": sha256, "config": config}
    write_json(directory / "config.json", run)
    with pytest.raises(ValueError, match=rf"elu\+1-none/seed{seed} holds .*{difference}"):
        merge_with_existing(there, now(there, seeds=[0, 1, 2, 3]))


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


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("git", "said"),
    [
        ({"commit": "f" * 40, "code_sha256": "bb"}, "commit ffffffffffff, begun with 0123abcd0123; what was measured"),
        ({"commit": "f" * 40}, "commit ffffffffffff, begun with 0123abcd0123; the files of the code are the same"),
        ({"dirty": True, "code_sha256": "bb"}, "commit 0123abcd0123 with uncommitted changes, begun with"),
    ],
    ids=["other code", "same code", "uncommitted changes"],
)
def test_code_that_changed_since_is_a_warning_in_the_report(there, git, said):
    merged = merge_with_existing(there, now(there, git=GIT | git))
    (note,) = merged.notes
    assert said in note
    write_record(there / "comparison.json", merged)
    write_report(there, STUDIES["convergence"])
    assert f'<p class="warning">{note}</p>' in (there / "report.html").read_text()
    assert f"{note}" in (there / "report.md").read_text()


def test_a_record_of_before_the_code_was_hashed_is_no_change(there):
    older = {name: GIT[name] for name in ("commit", "dirty")}
    write_record(there / "comparison.json", now(there, git=older))
    assert merge_with_existing(there, now(there, git=GIT)).notes == []


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


def test_a_report_shows_the_commands_that_made_what_it_shows(there):
    """Not the first one of the directory, when the runs it made are a part of those that are shown."""

    def shown(merged):
        write_record(there / "comparison.json", merged)
        write_report(there, STUDIES["convergence"])
        return [(there / name).read_text() for name in ("report.md", "report.html")]

    def given(command, **changes):
        return merge_with_existing(there, now(there, command=command, **changes))

    first = read_comparison(there).command
    more = msgspec.to_builtins(read_comparison(there).variants[0]) | {"name": "softmax-none"}
    for text in shown(given("run --variants softmax-none", variants=[more])):
        assert f"{first}\nrun --variants softmax-none" in text
        assert "These commands, one after the other, make it." in text
    seeds = [*range(9)]
    for text in shown(given("run --seeds 9", seeds=seeds)):
        assert "run --seeds 9" in text
        assert "This command makes it." in text
        assert "--variants softmax-none" not in text


@pytest.mark.parametrize("change", [{"config": {"steps": 7}}, {"data_sha256": "cd" * 32}, None])
def test_a_report_refuses_a_run_that_was_made_with_something_else(there, change):
    path = run_directory(there, "elu+1-none", 1) / "config.json"
    made_with = json.loads(path.read_text())
    path.unlink() if change is None else path.write_text(json.dumps(made_with | change))
    with pytest.raises(ValueError, match=r"elu\+1-none/seed1 (holds|has records)"):
        write_report(there, STUDIES["convergence"])
    assert not (there / "report.html").exists()


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
