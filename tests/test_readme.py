"""The Python in the README and in docs/ runs as written; its commands, links and numbers are those that exist."""

import csv
import re
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments.cli import COMMANDS, main
from tests.made_up import quick

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
PAGES = {path: path.read_text(encoding="utf-8") for path in (PROJECT / "README.md", *PROJECT.glob("docs/**/*.md"))}
FINDINGS = {
    path: text
    for path, text in PAGES.items()
    if "findings" in path.parts or path.name in ("README.md", "benchmark.md", "speed.md")
}
TABLES = ("recipe/recipe.md", "benchmark/v1/benchmark.md")
SPEED = PAGES[PROJECT / "docs/speed.md"]
CLAIMS = list(csv.DictReader((PROJECT / "results/claims.csv").read_text(encoding="utf-8").splitlines()))
# Whose examples run where they are installed.
OTHER_LIBRARIES = ("performer_pytorch", "transformers", "x_transformers", "torchtune")


def marks(block):
    absent = [
        name
        for name in OTHER_LIBRARIES
        if re.search(rf"^(from|import) {name}\b", block, flags=re.MULTILINE) and find_spec(name) is None
    ]
    if absent:
        return [pytest.mark.skip(reason=f"{', '.join(absent)} is not installed")]
    return [pytest.mark.slow, pytest.mark.full] if "compare(" in block else []


BLOCKS = [
    pytest.param(block, id=f"{path.name}-{number}", marks=marks(block))
    for path, text in PAGES.items()
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_examples_run_as_written(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "example", "exec"), {})


def test_there_are_examples_and_the_commands_exist():
    assert len(BLOCKS) >= 6
    assert set(re.findall(r"python -m experiments (\w+)", README)) == set(COMMANDS)
    for text in PAGES.values():
        assert set(re.findall(r"python -m experiments (\w+)", text)) <= set(COMMANDS)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_files_and_headings_that_are_linked_to_exist(path):
    for place, heading in re.findall(r"\]\(([^)#:\s]*)(?:#([\w-]+))?\)", PAGES[path]):
        target = (path.parent / place) if place else path
        assert target.exists(), place
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}, heading


def test_the_readme_stays_short_and_has_every_finding_s_page():
    assert len(README.splitlines()) <= 130
    index = PAGES[PROJECT / "docs/findings/index.md"]
    for page in PROJECT.glob("docs/findings/*.md"):
        assert page.name == "index.md" or f"({page.name})" in index


@pytest.fixture(scope="module")
def report_of(tmp_path_factory):
    """Makes the report of a folder of results/ without its figures, once, and gives its text."""
    directory = tmp_path_factory.mktemp("reports")

    @cache
    def report(folder):
        copy = shutil.copytree(PROJECT / folder, directory / folder, ignore=shutil.ignore_patterns("figures"))
        with quick():
            assert main(["report", str(copy)]) == 0
        return (copy / "report.md").read_text(encoding="utf-8")

    return report


REPORTED = re.compile(r"\]\([./]*(results/(?:reference|recipe|benchmark/v1)/[\w.-]+?(?<!\.md))(?:/report\.md)?\)")
"""the folder of a comparison, which a page links to"""


TRIPLE = re.compile(r"([+-]?\d+\.\d+)%?\s+\[([+-]?\d+\.\d+)%?,\s+([+-]?\d+\.\d+)%?\]")


def triples(text):
    """Every mean with its interval, what the last digit is worth, and whether a sign is written."""
    found = []
    for numbers in TRIPLE.findall(text.replace("\N{MINUS SIGN}", "-")):
        unit = 10.0 ** -len(numbers[0].partition(".")[2])
        found.append((tuple(map(float, numbers)), unit, any(number[0] in "+-" for number in numbers)))
    return found


def unsigned(values):
    """As a sentence says it ("lower by"): without signs, the smaller end first."""
    mean, *ends = map(abs, values)
    return (mean, *sorted(ends))


def triples_of_claims():
    """Those of the table of claims, in which a share is no percentage."""
    for row in CLAIMS:
        if row["low"]:
            values = tuple(float(row[name]) for name in ("mean", "low", "high"))
            yield from (((values, 1e-5, True)), ((tuple(100 * value for value in values), 1e-3, True)))


@pytest.mark.slow
def test_every_interval_and_every_figure_of_a_table_in_the_findings_is_a_claim_s_or_a_report_s(report_of):
    """One test, for one process then makes the reports; intervals here, figures below."""
    folders = sorted({folder for text in FINDINGS.values() for folder in REPORTED.findall(text)})
    made = [*map(report_of, folders), *((PROJECT / "results" / name).read_text("utf-8") for name in TABLES)]
    measured = [found for text in made for found in triples(text)] + [*triples_of_claims()]
    said = [found for text in FINDINGS.values() for found in triples(text)]
    assert len(said) > 90
    for numbers, unit, signed in said:
        shown = (lambda values: values) if signed else unsigned
        assert any(
            all(abs(a - b) <= (unit + other) / 2 + 1e-9 for a, b in zip(numbers, shown(values), strict=True))
            for values, other, _ in measured
        ), numbers
    check_figures_of_tables(report_of)


def check_figures_of_tables(report_of):
    """Each is one of the reports that its page links to, rounded, or in percent of what a report has as a share."""
    said = 0
    for text in FINDINGS.values():
        linked = [(PROJECT / "results" / name).read_text("utf-8") for name in TABLES if name in text]
        reports = [*map(report_of, dict.fromkeys(REPORTED.findall(text))), *linked]
        measured = {number for report in reports for number in re.findall(r"\b\d+\.\d{1,3}\b", report)}
        measured |= {f"{100 * float(share):.1f}" for share in measured if re.fullmatch(r"[01]\.\d{3}", share)}
        cells = [cell.strip() for row in re.findall(r"^\|(.*)\|$", text, flags=re.MULTILINE) for cell in row.split("|")]
        figures = {cell for cell in cells if re.fullmatch(r"\d+\.\d{1,3}", cell)}
        decimals = {len(cell.partition(".")[2]) for cell in figures}
        rounded = {f"{float(number):.{count}f}" for number in measured for count in decimals}
        assert figures <= rounded, figures - rounded
        said += len(figures)
    assert said > 90


def test_every_share_and_decimal_in_the_readme_is_one_of_a_page_that_its_row_or_bullet_links_to():
    numbers = re.compile(r"\b\d+\.\d+\b|\b\d+(?= ?%)")
    advice, _, findings = README.partition("## What shall I use?")[2].partition("## What the experiments found")
    entries = [*advice.splitlines(), *findings.partition("\n## ")[0].split("\n* ")]
    said = 0
    for entry in entries:
        pages = [PROJECT / place for place in re.findall(r"\((docs/[\w/-]+\.md)", entry)]
        there = {number for page in pages for number in numbers.findall(PAGES[page])}
        found = set(numbers.findall(entry))
        assert found <= there, (found - there, entry)
        said += len(found)
    assert said >= 25


def test_the_table_of_speed_is_the_report_s(report_of):
    def rows_of(name):
        section = report_of(f"results/reference/{name}").partition("# Targets\n")[2].partition("\n#")[0]
        return [line.strip() for line in section.splitlines() if line.startswith("| ")][2:]

    targets, decoding = map(rows_of, ("speed", "speed-decoding"))
    said = SPEED.partition("## Targets")[2].partition("## Decoding")[0].splitlines()
    shown = [line for line in said if line.startswith("| ")][2:]
    assert len(shown) >= 8
    assert {*shown} <= {*targets}
    assert {row for row in targets if row.endswith("| missed |")} <= {*shown}
    rows = (row.strip("| ").split(" | ") for row in decoding)
    decoding = {what: (target, f"{measured}, {verdict}") for what, target, measured, verdict in rows}
    for length, target in ((1024, "1.3"), (2048, "2"), (8192, "4")):
        cells = [
            decoding[f"decoding, context {length:,}: {case} rope after: speed against softmax rope"]
            for case in ("favor+", "elu+1")
        ]
        assert {wanted for wanted, _ in cells} == {f"at least {target} times"}
        row = " | ".join(said for _, said in cells)
        assert f"| {length:,} | {target} | {row} |" in SPEED
