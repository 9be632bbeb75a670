"""What watch shows of a comparison: how far each run is, in any width, and that it ends with the last run."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from experiments.cli import main
from experiments.commands.watch import frame, look

PROJECT = Path(__file__).parents[3]
NOW = 1_000_000.0


def put_rows(root, variant, seed, rows, written=NOW):
    """Give a run these training rows, of (step, seconds), last written at a time."""
    directory = root / variant / f"seed{seed}"
    lines = [
        {"step": step, "tokens": step, "split": "train", "loss": 2.5, "tokens_per_second": 1234.0, "seconds": seconds}
        for step, seconds in rows
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("metrics.jsonl", "status.json"):
        os.utime(directory / name, (written, written))


@pytest.fixture
def root(make_comparison, tmp_path):
    """Of 100 steps: one run is in the middle, one silent, one has failed, one waits, five are done."""
    fates = {
        ("softmax-none", 0): ("running", None),
        ("softmax-none", 1): ("running", None),
        ("softmax-none", 2): ("failed", "no room"),
        ("elu+1-none", 2): ("queued", None),
    }
    root = make_comparison(tmp_path / "out", fates=fates)
    # It was stopped after step 40 and went on at 0.5 s a step.
    put_rows(root, "softmax-none", 0, [(20, 30.0), (40, 60.0), (50, 10.0), (60, 15.0)], NOW - 5)
    put_rows(root, "softmax-none", 1, [(20, 10.0), (40, 20.0)], NOW - 3600)
    return root


def shown(root, width, height=None, now=NOW, **options):
    console = Console(width=width, **options)
    with console.capture() as capture:
        console.print(frame(look(root, now), width, height))
    return capture.get()


def test_the_table_has_every_run_with_what_it_does(root):
    (progress,) = look(root, NOW)
    run = progress.runs[0]
    assert (run.step, run.seconds_per_step, run.seconds_left) == (60, 0.5, 40 * 0.5 - 5), "since it was last started"
    lines = shown(root, 80).splitlines()
    assert re.fullmatch(r".*out: 5 done, 1 failed, 1 queued, 2 running; about \d+ s left *", "".join(lines[:2]))
    text = "\n".join(lines)
    assert re.search(r"^a softmax-none seed 0 +15 s left +60/100 +2\.500 +1,234 *$", text, re.MULTILINE)
    assert re.search(r"^a softmax-none seed 1 +silent 60 min +40/100", text, re.MULTILINE)
    assert re.search(r"^b softmax-rope seed 0 +done +100/100", text, re.MULTILINE)
    assert "softmax-none seed 2: no room" in text
    assert len(re.findall(r"^[abc] \S+ seed \d", text, re.MULTILINE)) == 9


@pytest.mark.parametrize("width", [80, 40])
def test_nothing_is_wider_than_the_terminal_and_numbers_are_whole(root, width):
    text = shown(root, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count(" 2.500") == 2
    # The curves are drawn with the letters of their variants, inside the frame.
    assert {"b", "c"} <= set(re.sub(r"[^a-z]", "", "".join(re.findall("[│┤](.*)│", text))))


def test_a_low_terminal_shows_the_runs_that_matter_most(root):
    text = shown(root, 80, height=20)
    assert [state in text for state in ("s left", "silent", "no room", "queued", "and 4 more")] == [True] * 5


def test_what_trains_nothing_is_passed_over(make_comparison, tmp_path, capsys):
    make_comparison(tmp_path / "trained", "elu+1-none", 1)
    shutil.copytree(PROJECT / "results/reference/speed-decoding", tmp_path / "measured")
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert "measured" not in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "measured"), "--once"]) == 2
    assert "measured trains nothing" in capsys.readouterr().err


def test_on_a_terminal_it_goes_on_until_the_last_run_has_ended(make_comparison, tmp_path, capsys):
    root = make_comparison(tmp_path / "out", "elu+1-none", 1, fates={("elu+1-none", 0): ("running", None)})
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "experiments", "watch", str(root), "--every", "0.1"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "60", "LINES": "40"}
    process = subprocess.Popen(command, cwd=PROJECT, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    said = b""
    while b"1 running" not in said:
        said += os.read(leader, 4096)
    assert process.poll() is None
    status = root / "elu+1-none" / "seed0" / "status.json"
    status.write_text(status.read_text().replace("running", "done"))
    try:
        while chunk := os.read(leader, 4096):
            said += chunk
    except OSError:  # Linux's word for the end of a terminal
        pass
    assert process.wait(60) == 0
    assert b"1 done" in said
    for once in (["--once"], []):  # without a terminal it ends, too
        assert main(["watch", str(root), *once]) == 0
        assert "elu+1-none seed 0" in capsys.readouterr().out
