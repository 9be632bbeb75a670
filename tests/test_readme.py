"""The README's Python runs as written, and its commands are those that exist."""

import csv
import json
import re
from pathlib import Path

import pytest

from experiments.cli import COMMANDS

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
SUMMARY = README.partition("## What the results say")[2].partition("## Import it")[0]
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize(
    "block", [pytest.param(block, marks=pytest.mark.slow) if "compare(" in block else block for block in BLOCKS]
)
def test_the_examples_run_as_written(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})


def test_there_are_examples_and_the_commands_figures_and_results_exist():
    assert len(BLOCKS) >= 2
    assert set(re.findall(r"python -m experiments (\w+)", README)) == set(COMMANDS)
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (PROJECT / path).exists(), path


def test_the_table_of_results_is_the_committed_report_s():
    report = (PROJECT / "results/reference/convergence/report.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:softmax|favor\+|elu\+1|relu)-.*", README, flags=re.MULTILINE)
    results = report.partition("### Results")[2].partition("###")[0]
    reported = {line.split(" | ")[0]: line for line in results.splitlines() if line.startswith("| ")}
    comparison = json.loads((PROJECT / "results/reference/convergence/comparison.json").read_text())
    assert [row.strip("| ").split(" | ")[0] for row in rows] == [variant["name"] for variant in comparison["variants"]]
    for row in rows:
        variant, *values = row.strip("| ").split(" | ")
        for value in values:
            assert f" {value} |" in reported[f"| {variant}"], (variant, value)


@pytest.mark.parametrize("kernel", ["favor+", "elu+1"])
@pytest.mark.parametrize("reference", ["convergence", "convergence-long", "convergence-imdb"])
def test_what_is_said_of_the_order_is_what_the_claims_page_says(kernel, reference):
    page = (PROJECT / "results/CLAIMS.md").read_text(encoding="utf-8")
    (row,) = re.findall(
        rf"test loss, {re.escape(kernel)}-rope-after minus {re.escape(kernel)}-rope-before, bits per byte: "
        rf".([\d.]+) \[.([\d.]+), .([\d.]+)\][^|]*\| {reference};[^|]*\| \*\*(.*?)\*\*",
        page,
    )
    mean, *bounds, verdict = row
    said = re.findall(r"([\d.]+)\s+\[([\d.]+), ([\d.]+)\][^*]*\*\*(.*?)\*\*", " ".join(SUMMARY.split()))
    assert any(
        [float(found[0]), *sorted(map(float, found[1:3]))]
        == pytest.approx([float(mean), *sorted(map(float, bounds))], abs=6e-4)
        and found[3] == verdict
        for found in said
    )


TRIPLE = re.compile(r"([+-]?\d+\.\d+)%?\s+\[([+-]?\d+\.\d+)%?,\s+([+-]?\d+\.\d+)%?\]")


def triples(text):
    """Every mean with its interval, what the last digit is worth, and whether a sign is written."""
    found = []
    for numbers in TRIPLE.findall(text):
        unit = 10.0 ** -len(numbers[0].partition(".")[2])
        found.append((tuple(map(float, numbers)), unit, any(number[0] in "+-" for number in numbers)))
    return found


def unsigned(values):
    """As a sentence says it ("lower by"): without signs, the smaller end first."""
    mean, *ends = map(abs, values)
    return (mean, *sorted(ends))


def test_every_interval_in_the_findings_is_one_of_the_claims_page_or_of_a_report():
    results = PROJECT / "results"
    pages = [results / "CLAIMS.md", *results.glob("reference/*/report.md")]
    measured = [found for page in pages for found in triples(page.read_text(encoding="utf-8"))]
    said = triples(SUMMARY)
    assert len(said) > 30
    for numbers, unit, signed in said:
        shown = (lambda values: values) if signed else unsigned
        assert any(
            all(abs(a - b) <= (unit + other) / 2 + 1e-9 for a, b in zip(numbers, shown(values), strict=True))
            for values, other, _ in measured
        ), numbers


def test_the_table_of_speed_is_the_committed_one():
    with (PROJECT / "results/reference/speed/targets.csv").open(encoding="utf-8") as file:
        targets = list(csv.DictReader(file))
    assert len(targets) > 10
    for row in targets:
        assert "| " + " | ".join((row["what"], row["target"], row["measured"], row["verdict"])) + " |" in README
