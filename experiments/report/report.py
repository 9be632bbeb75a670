"""The report of a comparison, rebuilt from its files alone: tables, figures, report.md and report.html."""

import base64
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import psutil
from PIL import Image
from rich.table import Table

from experiments.figures.rates import draw_rates
from experiments.figures.style import DOTS_PER_INCH
from experiments.judge.statistics import summarise
from experiments.judge.verdicts import RULE
from experiments.records.files import check_link, write_atomically
from experiments.records.record import PACKED_RUNS, read_comparison
from experiments.records.schema import Comparison
from experiments.records.store import check_runs, commands_of, with_baseline
from experiments.report.evidence import Evidence, read_evidence
from experiments.report.interactive import interactive
from experiments.report.render import template
from experiments.report.tables import (
    happenings,
    how_to_read,
    main_table,
    notes_in_words,
    paper_table,
    terminal_table,
    unfinished_runs,
    with_something,
)
from experiments.show.entries import entries_of
from experiments.show.words import setting
from experiments.study import Entries, FigureEntry, Study, TableEntry, resolve
from experiments.train.tuning import rates_caption, rates_table

FILES = ("curves.csv", "summary.csv", "report.md", "report.html")
CURVES = "validation"
"""the main figure of studies whose answer is in the curves; on the page they are interactive"""
UNFINISHED_REPORT = ".report-"
"""how the directory that a report is made in begins; the number of the process follows"""


def write_report(root: Path, study: Study, baseline: str | None = None) -> Path:
    """Rebuild curves.csv, summary.csv, figures/, report.md and report.html of a comparison; return the last's path.

    ``study`` draws the figures; all variants are compared with ``baseline``, or with what is on record. Equal records
    give equal files. Raises ValueError, and changes nothing, if ``root`` is not a comparison, or one without that
    variant, one of its files is not as schema.py says, or something is in the way of what is written.
    """
    check_places(root)
    write(read_evidence(root, study, baseline))
    return root / "report.html"


def _main_figure(figures: list[dict[str, Any]], stem: str) -> dict[str, Any] | None:
    """The study's, or the first one where a comparison has no such figure; None for a study that names none."""
    named = (figure for figure in figures if figure["stem"] == stem)
    return next(named, figures[0] if figures else None) if stem else None


def write(evidence: Evidence) -> dict[str, Any] | None:
    """The same of what was read already; return the main figure as the page has it, if there is one."""
    root, study, comparison = evidence.root, evidence.study, evidence.comparison
    curves, summary = evidence.curves, evidence.summary
    with TemporaryDirectory(prefix=f"{UNFINISHED_REPORT}{os.getpid()}-", dir=root) as temporary:
        output = Path(temporary)
        entries = _entries(evidence, output)
        rates = rates_table(root, comparison)
        if rates is not None:
            entries += filter(None, [draw_rates(root, output, comparison)])
            entries.append(TableEntry("Learning rates", rates, rates_caption(comparison)))
        shown = [_shown(output, entry) for entry in entries]
        main_figure = _main_figure([entry for entry in shown if "stem" in entry], study.main_figure)
        made = {"curves.csv": curves.to_csv(index=False), "summary.csv": summary.to_csv(index=False)}
        measured = (path.name for form in ("*.csv*", "*.parquet") for path in root.glob(form))
        tables = [name for name in measured if name not in (*FILES, PACKED_RUNS)]
        queued, unfinished = unfinished_runs(root, comparison, curves)
        main = with_something(main_table(summary, comparison)) if comparison.variants else pd.DataFrame()
        content = {
            **{each: study.said(getattr(study, each)) for each in ("question", "method", "not_shown")},
            "answer": evidence.answer,
            "setting": setting(comparison, study.measured),
            "comparison": comparison,
            "commands": "\n".join(commands_of(comparison)),
            "these": "These commands, one after the other," if len(commands_of(comparison)) > 1 else "",
            "settings": settings(comparison),
            "table": rows_of(main),
            "below": f"{how_to_read(main, summary, comparison)} {study.said(study.table_note)}".strip(),
            "groups": _first_of_kernels(comparison),
            "queued": queued,
            "unfinished": unfinished,
            "notes": notes_in_words(comparison),
            "happenings": happenings(root, comparison),
            "claims": [row for row in evidence.rows if row.was_asked],
            "rule": RULE,
            "entries": shown,
            "used_data": [data for data in comparison.data if data.note and any(entry.uses_data for entry in entries)],
            "main": main_figure,
            "live": interactive(curves, summary, comparison),
            "live_first": study.main_figure in ("", CURVES),
            "tables": [*evidence.tables, *sorted(tables)],
            "repeatability": template("repeatability.txt").render(comparison=comparison),
            "environment": {"commit": comparison.git.commit, **comparison.machine, **comparison.versions},
            "program": "linear-rope" if comparison.command.startswith("linear-rope") else "python -m experiments",
        }
        made |= {file: template(file).render(content) for file in ("report.md", "report.html")}
        for file, text in made.items():
            write_atomically(output / file, text)
        (root / "figures").mkdir(exist_ok=True)
        files = [path for path in output.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: path.name == "report.html"):  # which shows all the others
            os.replace(path, root / path.relative_to(output))
    return main_figure


def _entries(evidence: Evidence, output: Path) -> Entries:
    """The figures and tables of the study, in reading order."""
    figures = evidence.study.figures
    if isinstance(figures, list):
        return entries_of(evidence.shown, output)
    assert isinstance(figures, str) or callable(figures)
    return [*resolve(figures)(evidence.root, output, evidence.comparison, evidence.curves, evidence.summary)]


def settings(comparison: Comparison) -> dict[str, Any]:
    """The configuration as it was followed: with budgets the learning rate has another schedule than the one named."""
    has_budgets = comparison.config.get("budgets", "none") != "none"
    return comparison.config | ({"schedule": "constant, to zero at each budget"} if has_budgets else {})


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


def table_for_a_paper(root: Path, form: str, baseline: str | None = None) -> str:
    """The main table of a comparison as ``tables.paper_table`` has it. Raises ValueError if there is none, or no such
    variant as the baseline.
    """
    comparison = read_comparison(root)
    if not comparison.variants:
        raise ValueError(
            f"--format: {root} trains nothing, so it has no main table; its tables are the CSV files in it"
        )
    check_runs(root, comparison)
    comparison = with_baseline(comparison, baseline)
    return paper_table(summarise(root, comparison), comparison, form)


def result_table(root: Path) -> Table:
    """The main table of a comparison for a terminal. Raises ValueError if ``root`` is not a comparison."""
    comparison = read_comparison(root)
    return terminal_table(summarise(root, comparison), comparison)


def _shown(output: Path, entry: FigureEntry | TableEntry) -> dict[str, Any]:
    words = {"title": entry.title, "caption": entry.caption}
    if isinstance(entry, TableEntry):
        return words | {"table": rows_of(entry.table)}
    image, size = _picture(output / "figures" / f"{entry.stem}.png")
    return words | {"stem": entry.stem, "image": image, "size": size}


def _picture(path: Path) -> tuple[str, tuple[int, int]]:
    """The file in base64, and its size in CSS pixels; nothing if there is none."""
    if not path.exists():
        return "", (0, 0)
    with Image.open(path) as image:
        width, height = (round(pixels * 96 / DOTS_PER_INCH) for pixels in image.size)
    return base64.b64encode(path.read_bytes()).decode(), (width, height)


def _first_of_kernels(comparison: Comparison) -> list[int]:
    """The places of the variants whose kernel is not that of the one before."""
    kernels = [variant.kernel for variant in comparison.variants]
    return [place for place in range(1, len(kernels)) if kernels[place] != kernels[place - 1]]


def rows_of(table: pd.DataFrame) -> list[list[str]]:
    """The header and the rows of a table, as strings."""
    return [[str(cell) for cell in row] for row in (list(table.columns), *table.to_numpy(dtype=object).tolist())]
