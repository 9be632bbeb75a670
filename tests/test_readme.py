"""The README's Python runs as written, and its commands are those that exist."""

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
