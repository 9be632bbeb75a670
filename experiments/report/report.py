"""The report of a comparison, rebuilt from its files alone: tables, figures, report.md and report.html."""

import base64
import os
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jinja2
import pandas as pd
import psutil
from rich.table import Table

from experiments.analysis.claims import claims_of
from experiments.analysis.curves import read_curves
from experiments.analysis.references import declared_claims
from experiments.analysis.statistics import summarise
from experiments.analysis.verdicts import RULE, evaluate
from experiments.records.csv_files import to_csv
from experiments.records.files import visible, write_atomically
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.records.store import check_runs
from experiments.report.tables import happenings, main_table, repeatability, terminal_table, unfinished_runs
from experiments.studies.registry import STUDIES
from experiments.study import FigureEntry, Study, TableEntry, resolve
from experiments.training.tuning import rates_caption, rates_table

TEMPLATES = Path(__file__).parent / "templates"
UNFINISHED_REPORT = ".report-"
"""how the directory that a report is made in begins; the number of the process follows"""


def write_report(root: Path, study: Study | None = None) -> Path:
    """Rebuild curves.csv, summary.csv, figures/, report.md and report.html of a comparison; return the last's path.

    ``study`` draws the figures; by default it is the one that comparison.json names. Equal records give equal
    files. Raises ValueError, and changes nothing, if ``root`` is not a comparison or one of its files is not as
    schema.py says.
    """
    comparison = read_comparison(root)
    study = study or STUDIES[comparison.study]
    check_runs(root, comparison)
    curves = read_curves(root, comparison)
    summary = summarise(root, comparison, curves)
    runs = {"unfinished": unfinished_runs(root, comparison, curves), "happenings": happenings(root, comparison)}
    with TemporaryDirectory(prefix=f"{UNFINISHED_REPORT}{os.getpid()}-", dir=root) as temporary:
        output = Path(temporary)
        entries = resolve(study.figures)(root, output, comparison, curves, summary)
        rates = rates_table(root, comparison)
        if rates is not None:
            entries.append(TableEntry("Learning rates", rates, rates_caption(comparison.objective)))
        content = _content(output, comparison, summary, entries) | runs | _words(study)
        claims = declared_claims(claims_of(study), comparison.name, study.name)
        content["claims"] = evaluate(
            claims, root, comparison, curves, reference=comparison.name, command=comparison.command
        )
        write_atomically(output / "curves.csv", to_csv(curves))
        write_atomically(output / "summary.csv", to_csv(summary))
        write_atomically(
            output / "report.md", template_environment(escape_html=False).get_template("report.md").render(content)
        )
        html = template_environment(escape_html=True).get_template("report.html").render(content)
        (root / "figures").mkdir(exist_ok=True)
        for path in sorted(path for path in output.rglob("*") if path.is_file()):
            os.replace(path, root / path.relative_to(output))
    path = root / "report.html"
    write_atomically(path, html)
    return path


def remove_unfinished_reports(root: Path) -> None:
    """Remove what killed processes left of a report."""
    for leftover in root.glob(f"{UNFINISHED_REPORT}*"):
        process = leftover.name.removeprefix(UNFINISHED_REPORT).partition("-")[0]
        if not (process.isdecimal() and psutil.pid_exists(int(process))):
            shutil.rmtree(leftover, ignore_errors=True)


def result_table(root: Path) -> Table:
    """The main table of a comparison for a terminal. Raises ValueError if ``root`` is not a comparison."""
    comparison = read_comparison(root)
    return terminal_table(summarise(root, comparison), comparison)


def _content(
    output: Path, comparison: Comparison, summary: pd.DataFrame, entries: list[FigureEntry | TableEntry]
) -> dict[str, Any]:
    """What the two templates show of the numbers, besides the claims and what became of the runs."""
    tested = summary.drop_duplicates("variant")  # the first row of each tells of the test split
    return {
        "comparison": comparison,
        "table": _rows(main_table(summary, comparison)),
        "finished": int(tested["n"].sum()),
        "planned": int(tested["planned"].sum()),
        "rule": RULE,
        "entries": [_shown(output, entry) for entry in entries],
        "repeatability": repeatability(comparison),
        "git": comparison.git,
        "environment": {**comparison.machine, **comparison.versions},
    }


def _words(study: Study) -> dict[str, str]:
    return {name: study.said(getattr(study, name)) for name in ("question", "method", "not_shown")}


def _shown(output: Path, entry: FigureEntry | TableEntry) -> dict[str, Any]:
    words = {"title": entry.title, "caption": entry.caption, "uses_data": entry.uses_data}
    if isinstance(entry, TableEntry):
        return words | {"table": _rows(entry.table)}
    image = base64.b64encode((output / "figures" / f"{entry.stem}.svg").read_bytes()).decode()
    return words | {"stem": entry.stem, "image": image}


def _rows(table: pd.DataFrame) -> list[list[str]]:
    """The header and the rows of a table, as strings."""
    return [[str(run) for run in row] for row in (list(table.columns), *table.to_numpy(dtype=object).tolist())]


def template_environment(*, escape_html: bool) -> jinja2.Environment:
    """Where the templates are read: with filters that make text literal in Markdown, and HTML escaped if asked for."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=escape_html,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["markdown"] = _escape_markdown
    environment.filters["code"] = _markdown_code
    environment.filters["code_block"] = _markdown_code_block
    environment.filters["number"] = lambda value: f"{value:,}"
    return environment


def _escape_markdown(text: object) -> str:
    """The text on one line, with what Markdown and HTML would interpret made literal."""
    one_line = " ".join(str(text).split())
    return re.sub(r"([\\`*<>|~]|_(?!\w)|(?<!\w)_|\](?=[(\[]))", r"\\\1", one_line.replace("&", "&amp;"))


def _markdown_code(text: str) -> str:
    """The text as inline code, between more backticks than it has in a row."""
    one_line = " ".join(text.split())
    fence = "`" * _longer_than_backticks(one_line, 1)
    space = " " if "`" in one_line else ""
    return f"{fence}{space}{one_line}{space}{fence}"


def _markdown_code_block(text: str) -> str:
    fence = "`" * _longer_than_backticks(text, 3)
    return f"{fence}\n{text}\n{fence}"


def _longer_than_backticks(text: str, least: int) -> int:
    return max([least, *(len(run) + 1 for run in re.findall("`+", text))])


def _visible(value: object) -> object:
    """What a template writes, with nothing invisible in it: texts come from files, and numbers need no check."""
    if isinstance(value, (jinja2.Undefined, int, float)):
        return value
    text = str(value)
    shown = visible(text)
    return value if shown == text else shown
