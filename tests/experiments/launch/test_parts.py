"""``--part K/N``: several processes train one comparison, and a last one reports it."""

import json
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import pytest
from rich.console import Console

from experiments.cli import main
from experiments.commands import run_training
from experiments.launch.launcher import Run
from experiments.launch.parts import Part, without_part
from experiments.records.lock import for_a_moment, one_part, only_one_run
from experiments.records.record import read_comparison, run_status
from tests.made_up import repeated_rows

VARIANTS = ("softmax-none", "elu+1-none", "softmax-rope")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a text"
    path.write_text("to be or not to be\n" * 500)
    return path


def run(out, text, *options):
    command = ["run", "convergence", "--preset", "smoke", "--steps", "4", "--evaluate-every", "4", "--seeds", "2"]
    with pytest.MonkeyPatch.context() as patch:  # figures take most of the time of so small a run
        patch.setattr(run_training, "write_report", lambda there, study: there / "report.html")
        return main([*command, "--variants", ",".join(VARIANTS), "--out", str(out), "--data-file", str(text), *options])


def states(root: Path, seeds=(0, 1)):
    return [run_status(root, variant, seed).state for seed in seeds for variant in VARIANTS]


def test_the_parts_have_every_run_once_and_are_about_equal():
    runs = [Run(f"variant {number}", 0) for number in range(23)]
    for of in (1, 2, 7, 23, 40):
        shares = [Part(number, of).share(runs) for number in range(1, of + 1)]
        assert sorted(chain(*shares)) == sorted(runs)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.slow
def test_a_part_trains_its_share_and_a_run_without_reports_what_one_run_would(tmp_path, text, capsys):
    assert run(tmp_path / "whole", text) == 0
    out = tmp_path / "out"
    assert run(out, text, "--part", "2/2") == 0
    assert states(out) == ["queued", "done", "queued", "done", "queued", "done"]
    assert "part 2/2 has ended; when all have, the same command without --part" in capsys.readouterr().out
    assert not (out / "report.html").exists()
    assert run(out, text, "--part=1/2") == 0
    assert states(out) == ["done"] * 6
    assert run(out, text) == 0
    assert "6 of 6 runs are done already" in capsys.readouterr().out
    whole, parts = (
        [repeated_rows(root / name / f"seed{seed}/metrics.jsonl") for name in VARIANTS for seed in (0, 1)]
        for root in (tmp_path / "whole", out)
    )
    assert whole == parts
    record = read_comparison(out)
    assert "--part" not in record.command
    assert record.notes == read_comparison(tmp_path / "whole").notes
    assert [path.name for path in out.rglob(".*") if "lock" not in path.name and path.name != ".owner"] == []


def test_what_is_in_each_other_s_way_is_refused(tmp_path):
    with ExitStack() as held:
        with for_a_moment(tmp_path):
            held.enter_context(one_part(tmp_path, 1, 2))
        with for_a_moment(tmp_path):
            held.enter_context(one_part(tmp_path, 2, 2))
            with pytest.raises(ValueError, match=r"--part 1/2 of --out .* is being trained"), one_part(tmp_path, 1, 2):
                pass
            with pytest.raises(ValueError, match=r"is being written by --part ./2"), one_part(tmp_path, 1, 3):
                pass
        with pytest.raises(ValueError, match=r"is being written by --part ./2"), only_one_run(tmp_path, Console()):
            pass
        with for_a_moment(tmp_path):  # it was let go
            pass
    with only_one_run(tmp_path, Console()):
        pass


def test_the_command_of_all_parts_names_none():
    words = ["run", "x", "--part", "1/2", "--seeds", "3", "--part=2/2", "--partial"]
    assert without_part(words) == ["run", "x", "--seeds", "3", "--partial"]


@pytest.mark.slow
def test_a_part_that_failed_has_status_1(tmp_path, text, capsys):
    out = tmp_path / "out"
    assert run(out, text, "--part", "1/2") == 0
    job = json.loads((out / VARIANTS[0] / "seed0/config.json").read_text())
    (out / VARIANTS[1] / "seed0").mkdir(parents=True)
    config = out / VARIANTS[1] / "seed0"
    (config / "metrics.jsonl").write_text("nonsense\n")
    (config / "config.json").write_text(json.dumps(job | {"variant": VARIANTS[1]}))
    assert run(out, text, "--part", "2/2") == 1
    assert "the same command tries what failed again" in capsys.readouterr().out
