"""The README's Python runs as written, and its commands are those that exist."""

import csv
import re
from pathlib import Path

import pytest

from experiments.cli import COMMANDS

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_examples():
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("block", BLOCKS)
def test_the_examples_run_as_written(block):
    exec(compile(block, "README.md", "exec"), {})


def test_the_commands_exist():
    named = set(re.findall(r"python -m experiments (\w+)", README))
    assert named == set(COMMANDS)


def test_the_figures_and_results_exist():
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (Path(__file__).parents[1] / path).exists(), path


def test_the_table_of_results_is_the_committed_report_s():
    report = (Path(__file__).parents[1] / "results/reference/convergence/report.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:softmax|favor|elu).*", README, flags=re.MULTILINE)
    reported = {line.split(" | ")[0]: line for line in report.splitlines() if line.startswith("| ")}
    assert len(rows) == 8
    for row in rows:
        arm, *values = row.strip("| ").split(" | ")
        for value in values:
            assert f" {value} |" in reported[f"| {arm}"], (arm, value)
    for difference in ("0.2275", "0.1945", "0.2605", "0.1053", "0.0791", "0.1314"):
        assert difference in README
        assert difference in report


def test_the_table_of_speed_is_the_committed_one():
    with (Path(__file__).parents[1] / "results/reference/speed/targets.csv").open(encoding="utf-8") as file:
        targets = list(csv.DictReader(file))
    assert len(targets) > 10
    for row in targets:
        assert "| " + " | ".join((row["what"], row["target"], row["measured"], row["verdict"])) + " |" in README
