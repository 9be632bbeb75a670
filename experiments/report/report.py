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
from experiments.records.files import check_link, visible, write_atomically
from experiments.records.record import read_comparison
from experiments.records.store import check_runs
from experiments.report.tables import happenings, main_table, terminal_table, unfinished_runs
from experiments.study import FigureEntry, Study, TableEntry, resolve
from experiments.training.tuning import check_trials, rates_caption, rates_table

FILES = ("curves.csv", "summary.csv", "report.md", "report.html")
UNFINISHED_REPORT = ".report-"
"""how the directory that a report is made in begins; the number of the process follows"""


def write_report(root: Path, study: Study) -> Path:
    """Rebuild curves.csv, summary.csv, figures/, report.md and report.html of a comparison; return the last's path.

    ``study`` draws the figures. Equal records give equal files. Raises ValueError, and changes nothing, if ``root`` is
    not a comparison, one of its files is not as schema.py says, or something is in the way of what is written.
    """
    comparison = read_comparison(root)
    check_places(root)
    check_runs(root, comparison)
    check_trials(root, comparison)
    curves = read_curves(root, comparison)
    summary = summarise(root, comparison, curves)
    unfinished = unfinished_runs(root, comparison, curves)
    with TemporaryDirectory(prefix=f"{UNFINISHED_REPORT}{os.getpid()}-", dir=root) as temporary:
        output = Path(temporary)
        entries = resolve(study.figures)(root, output, comparison, curves, summary)
        rates = rates_table(root, comparison)
        if rates is not None:
            entries.append(TableEntry("Learning rates", rates, rates_caption(comparison.objective)))
        name = comparison.name
        claims = declared_claims(claims_of(study), name, study.name)
        tested = summary.drop_duplicates("variant")  # the first row of each tells of the test split
        content = {
            **{each: study.said(getattr(study, each)) for each in ("question", "method", "not_shown")},
            "comparison": comparison,
            "table": _rows(main_table(summary, comparison)),
            "finished": int(tested["n"].sum()),
            "planned": int(tested["planned"].sum()),
            "unfinished": unfinished,
            "happenings": happenings(root, comparison),
            "claims": evaluate(claims, root, comparison, curves, reference=name, command=comparison.command),
            "rule": RULE,
            "entries": [_shown(output, entry) for entry in entries],
            "repeatability": template("repeatability.txt").render(comparison=comparison),
            "git": comparison.git,
            "environment": {**comparison.machine, **comparison.versions},
        }
        made = {
            "curves.csv": to_csv(curves),
            "summary.csv": to_csv(summary),
            "report.md": template("report.md").render(content),
            "report.html": template("report.html").render(content),
        }
        for file, text in made.items():
            write_atomically(output / file, text)
        (root / "figures").mkdir(exist_ok=True)
        files = [path for path in output.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: path.name == "report.html"):  # which shows all the others
            os.replace(path, root / path.relative_to(output))
    return root / "report.html"


def check_places(root: Path) -> None:
    """Raises ValueError if a report cannot be written: told before the work begins, not when it is done."""
    figures = root / "figures"
    if figures.is_symlink():
        check_link(figures, root)
    if os.path.lexists(figures) and not figures.is_dir():
        raise ValueError(f"{figures} is no directory, and figures are written there; move it elsewhere, or remove it")
    for path in (*(root / name for name in FILES), *figures.glob("*.png"), *figures.glob("*.svg")):
        if path.is_dir():
            raise ValueError(f"{path} is a directory, and a file is written there; move it elsewhere, or remove it")
    for directory in (root, figures):
        if directory.is_dir() and not os.access(directory, os.W_OK | os.X_OK):
            raise ValueError(f"{directory} cannot be written; make it writable, or report a copy of the comparison")


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


def _shown(output: Path, entry: FigureEntry | TableEntry) -> dict[str, Any]:
    words = {"title": entry.title, "caption": entry.caption, "uses_data": entry.uses_data}
    if isinstance(entry, TableEntry):
        return words | {"table": _rows(entry.table)}
    image = base64.b64encode((output / "figures" / f"{entry.stem}.svg").read_bytes()).decode()
    return words | {"stem": entry.stem, "image": image}


def _rows(table: pd.DataFrame) -> list[list[str]]:
    """The header and the rows of a table, as strings."""
    return [[str(cell) for cell in row] for row in (list(table.columns), *table.to_numpy(dtype=object).tolist())]


def template(name: str) -> jinja2.Template:
    """A template, with filters that make text literal in Markdown; in HTML everything is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=name.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["markdown"] = _escape_markdown
    environment.filters["code"] = _markdown_code
    environment.filters["code_block"] = lambda text: "{0}\n{1}\n{0}".format(_fence(text, 3), text)
    environment.filters["number"] = lambda value: f"{value:,}"
    return environment.get_template(name)


def _escape_markdown(text: object) -> str:
    """The text on one line, with what Markdown and HTML would interpret made literal."""
    one_line = " ".join(str(text).split())
    return re.sub(r"([\\`*<>|~]|_(?!\w)|(?<!\w)_|\](?=[(\[]))", r"\\\1", one_line.replace("&", "&amp;"))


def _markdown_code(text: str) -> str:
    one_line, fence = " ".join(text.split()), _fence(text, 1)
    space = " " if "`" in text else ""
    return f"{fence}{space}{one_line}{space}{fence}"


def _fence(text: str, least: int) -> str:
    """More backticks than the text has in a row."""
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", text))])


def _visible(value: object) -> object:
    """What a template writes, with nothing invisible in it: texts come from files, and numbers need no check."""
    if isinstance(value, (jinja2.Undefined, int, float)):
        return value
    shown = visible(str(value))
    return value if shown == str(value) else shown
