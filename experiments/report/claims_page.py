"""The claims of all studies, judged on the reference comparisons: for a terminal, as a table, and as a page."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.console import make_console, printable
from experiments.errors import why
from experiments.judge.claims import SEEN, claims_of
from experiments.judge.references import REFERENCES, command, declared_claims
from experiments.judge.verdicts import NOT_RUN, RULE, VERDICTS, Row, evaluate
from experiments.records.files import visible, write_atomically
from experiments.report.render import template
from experiments.show.rows import read_rows
from experiments.show.words import answer
from experiments.study import Study

STYLES = dict(zip(VERDICTS, ("bold green", "bold red", "bold yellow", "dim"), strict=True))
FIRST_SENTENCE = re.compile(r"(?<=\.) (?=[A-Z])")


class Section(NamedTuple):
    """A study: what it asked, what came out, and its claims on each of its references."""

    name: str
    question: str
    rows: list[Row]
    answers: dict[str, str]
    """by reference; empty where it is not there"""
    primary: Collection[str]
    """the keys of the claims that answer the question"""

    @property
    def judged(self) -> list[list[Row]]:
        """The rows of each claim, in order."""
        found = defaultdict[str, list[Row]](list)
        for row in self.rows:
            found[row.claim.key].append(row)
        return list(found.values())


def claims(studies: Mapping[str, Study], results: Path, out: Path | None, summary: bool) -> None:
    """Print all claims, or a summary; write them to ``out`` too, if that is given: a CSV file has every claim on every
    comparison, any other is a page of those that answer the studies' questions, in Markdown.

    Raises:
        ValueError: ``results`` is no directory of comparisons, a file in it is damaged, or ``out`` cannot be written.
    """
    if not results.is_dir() or (results / "comparison.json").exists():
        raise ValueError(f"--results {results} is no directory of comparisons; give one, as results/reference")
    sections = read_sections(studies, results)
    if out is not None:
        try:
            write_atomically(out, table(sections) if out.suffix == ".csv" else page(sections))
        except OSError as error:
            what = f"--out {out} cannot be written ({why(error)})"
            raise ValueError(f"{what}; give a file in a directory that can") from None
    console = make_console()
    console.print(f"the comparisons in {printable(str(results))}", soft_wrap=True, highlight=False)
    print_claims(console, sections, summary)
    if out is not None:
        print(out)


def read_sections(studies: Mapping[str, Study], results: Path) -> list[Section]:
    """Every claim on every reference of its study, in the order of the studies; without those that have none."""
    sections = []
    for name, study in studies.items():
        references = [reference for reference, made in REFERENCES.items() if made.study == name] or [name]
        rows: list[Row] = []
        answers = {}
        for reference in references:
            root = results / reference
            if (root / "comparison.json").exists():
                found = read_rows(root, study)
                if found.comparison.study != name:
                    what = f"{root / 'comparison.json'} is of the study {found.comparison.study}"
                    raise ValueError(f"{what}, and {reference} is one of {name}; move it elsewhere")
                rows += [row._replace(reference=reference) for row in found.judged]
                answers[reference] = answer(found)
            else:
                declared = declared_claims(claims_of(study), reference, name)
                rows += evaluate(declared, root, None, None, reference=reference)
                answers[reference] = ""
        if rows:
            sections.append(Section(name, study.said(study.question), rows, answers, study.primary))
    return sections


def table(sections: Iterable[Section]) -> str:
    """A row for each claim on each comparison, with all that its verdict follows from, as a CSV file."""
    rows = [
        {
            "study": section.name,
            "comparison": row.reference,
            "claim": row.claim.key,
            **{name: getattr(row.claim, name) for name in ("statement", "published", "quantity", "criterion")},
            **{name: getattr(row, name) for name in ("data", "size", "verdict")},
            "n": row.estimate.n,
            "unit": row.unit,
            **{name: getattr(row.estimate, name) for name in ("mean", "low", "high")},
            "adjusted_p": row.p,
            "remark": visible(row.remark),
        }
        for section in sections
        for row in section.rows
    ]
    return pd.DataFrame(rows).to_csv(index=False, float_format="%.6g")


def page(sections: Iterable[Section]) -> str:
    """The claims that answer the studies' questions, in Markdown."""
    return template("claims_page.md").render(sections=sections, counts=counts(sections), seen=SEEN)


def counts(sections: Iterable[Section]) -> str:
    """How many rows have each verdict, in a line."""
    rows = [row for section in sections for row in section.rows]
    found = ", ".join(f"{number} {verdict}" for verdict, number in count(rows).items())
    return f"{len(rows)} rows, a claim judged on one comparison each: {found}."


def count(rows: Iterable[Row]) -> dict[str, int]:
    """How many rows have each verdict."""
    found = Counter(row.verdict for row in rows)
    return {verdict: found[verdict] for verdict in VERDICTS}


def print_claims(console: Console, sections: list[Section], summary: bool) -> None:
    """Print the first sentence of each answer; without ``summary`` all of it, every claim and the rule."""
    if not summary:
        for section in sections:
            console.print(_table(section))
        console.print("How a verdict is made:")
        for point in RULE:
            console.print(f"* {point}")
        console.print()
    grid, missing = Table.grid(padding=(0, 2)), list[str]()
    for section in sections:
        for reference, answered in section.answers.items():
            mine = count(row for row in section.rows if row.reference == reference)
            verdicts = ", ".join(f"{number} {verdict}" for verdict, number in mine.items() if number)
            if mine[NOT_RUN]:
                missing.append(command(reference))
            begins = answered and FIRST_SENTENCE.split(answered, maxsplit=1)[0]
            said = begins if summary and begins else f"{answered} [{verdicts}]".strip()
            grid.add_row(Text(reference, style="bold"), Text(visible(said)))
    console.print(grid)
    if missing and not summary:
        console.print("\nWhat is not run is made by:")
        for line in missing:
            console.print(f"  {line}", soft_wrap=True)
    console.print(f"\n{counts(sections)}", soft_wrap=True)


def _table(section: Section) -> Table:
    title = Text(f"{section.name}: {section.question}", style="bold")
    drawn = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column, ratio in {"claim": 50, "measured": 42, "verdict": 22}.items():
        drawn.add_column(column, ratio=ratio, overflow="fold")
    for rows in section.judged:
        for place, row in enumerate(rows):
            said = row.claim.statement if place == 0 else ""
            where = f"{row.reference}: " if len(rows) > 1 else ""
            measured = Text(visible(f"{where}{row.measured}"))
            remark = f"\n{visible(row.remark)}" if row.remark and row.verdict != NOT_RUN else ""
            drawn.add_row(Text(visible(said)), measured, Text(row.verdict, style=STYLES[row.verdict]).append(remark))
    return drawn
