"""The claims of all studies, judged on the reference comparisons: for a terminal, and as a page in Markdown."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.analysis.claims import claims_of
from experiments.analysis.curves import read_curves
from experiments.analysis.references import REFERENCES, command, declared_claims
from experiments.analysis.verdicts import NOT_RUN, RULE, VERDICTS, Row, evaluate
from experiments.console import make_console
from experiments.errors import why
from experiments.records.files import visible, write_atomically
from experiments.records.record import read_comparison
from experiments.records.store import check_runs
from experiments.report.report import template
from experiments.study import Study

STYLES = dict(zip(VERDICTS, ("bold green", "bold red", "bold yellow", "dim"), strict=True))


class Section(NamedTuple):
    """The claims of a study, on each of its references."""

    name: str
    question: str
    method: str
    not_shown: str
    rows: list[Row]
    commands: dict[str, str]
    """reference -> the command that makes it"""


def claims(studies: Mapping[str, Study], results: Path, out: Path | None) -> None:
    """Print the table of all claims; write it to ``out`` as Markdown too, if that is given.

    Raises:
        ValueError: ``results`` is no directory, a file in it is damaged, or ``out`` cannot be written.
    """
    if not results.is_dir():
        raise ValueError(f"--results {results} is no directory; give one that holds comparisons, as results/reference")
    sections = read_sections(studies, results)
    if out is not None:
        rows = [row for section in sections for row in section.rows]
        page = template("claims_page.md").render(
            sections=sections, rows=rows, count=count, counts=count(rows), rule=RULE
        )
        try:
            write_atomically(out, page)
        except OSError as error:
            raise ValueError(
                f"--out {out} cannot be written ({why(error)}); give a file in a directory that can"
            ) from None
    print_claims(make_console(), sections)
    if out is not None:
        print(out)


def read_sections(studies: Mapping[str, Study], results: Path) -> list[Section]:
    """Every claim on every reference of its study, in the order of the studies; without those that have none."""
    sections = []
    for name, study in studies.items():
        references = [reference for reference, made in REFERENCES.items() if made.study == name] or [name]
        commands = {reference: command(reference) for reference in references}
        rows = [row for reference in references for row in _rows(results / reference, study)]
        if rows:
            question, method, not_shown = map(study.said, (study.question, study.method, study.not_shown))
            sections.append(Section(name, question, method, not_shown, rows, commands))
    return sections


def count(rows: list[Row]) -> dict[str, int]:
    """How many rows have each verdict."""
    found = Counter(row.verdict for row in rows)
    return {verdict: found[verdict] for verdict in VERDICTS}


def print_claims(console: Console, sections: list[Section]) -> None:
    """Print a table for each study, the commands that make what it is judged on, the rule and the counts."""
    for section in sections:
        console.print(_table(section))
        console.print("Commands; given again, they finish what is missing and repeat nothing:")
        for reference, line in section.commands.items():
            console.print(f"  {reference}: {line}", soft_wrap=True)
        console.print()
    console.print("How a verdict is made:")
    for point in RULE:
        console.print(f"* {point}")
    counts = count([row for section in sections for row in section.rows])
    console.print("\n" + ", ".join(f"{number} {verdict}" for verdict, number in counts.items()))


def _rows(root: Path, study: Study) -> list[Row]:
    comparison = curves = None
    path = root / "comparison.json"
    if path.exists():
        comparison = read_comparison(root)
        if comparison.study != study.name:
            raise ValueError(
                f"{path} is of the study {comparison.study}, and {root.name} is one of {study.name}; move it elsewhere"
            )
        check_runs(root, comparison)
        curves = read_curves(root, comparison)
    claims = declared_claims(claims_of(study), root.name, study.name)
    return evaluate(claims, root, comparison, curves, reference=root.name, command=command(root.name))


def _table(section: Section) -> Table:
    table = Table(
        title=Text(f"{section.name}: {section.question}", style="bold"),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_lines=True,
        pad_edge=False,
    )
    for column, ratio in {"claim": 27, "published": 27, "measured": 27, "data and size": 18, "verdict": 17}.items():
        table.add_column(column, ratio=ratio, overflow="fold")
    for row in section.rows:
        verdict = Text(row.verdict, style=STYLES[row.verdict])
        remark = f"{row.remark}; command below" if row.verdict == NOT_RUN else row.remark
        if remark:
            verdict.append(f"\n{visible(remark)}", style="not bold")
        number, counted, n_and_p = row.measured.partition(", n = ")
        measured = f"{row.claim.quantity}:\n{number}" + (f"\nn = {n_and_p}" if counted else "")
        runs = (row.claim.statement, row.claim.published, measured, row.source)
        table.add_row(*(Text(visible(run)) for run in runs), verdict)
    return table
