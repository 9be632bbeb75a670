"""The report of a comparison, rebuilt from its files alone: tables, figures, report.md and report.html."""

import base64
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeGuard

import pandas as pd
from PIL import Image
from rich.table import Table

from experiments.judge.statistics import summarise
from experiments.judge.verdicts import RULE
from experiments.records.files import write_atomically
from experiments.records.record import PACKED_RUNS, read_comparison
from experiments.records.store import check_runs, commands_of, with_baseline
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
from experiments.show.rows import Rows, read_rows
from experiments.show.style import DOTS_PER_INCH
from experiments.show.words import answer, setting
from experiments.study import FigureEntry, Study, TableEntry, resolve

FILES = ("curves.csv", "summary.csv", "report.md", "report.html")
CURVES = "validation"
"""the main figure of studies whose answer is in the curves; on the page they are interactive"""


def write_report(root: Path, study: Study, baseline: str | None = None) -> Path:
    """Rebuild curves.csv, summary.csv, figures/, report.md and report.html of a comparison; return the last's path.

    ``study`` draws the figures; all variants are compared with ``baseline``, or with what is on record. Equal records
    give equal files. Raises ValueError, and changes nothing, if ``root`` is not a comparison, or one without that
    variant, or one of its files is not as schema.py says.
    """
    write(read_rows(root, study, baseline))
    return root / "report.html"


def write(rows: Rows) -> str:
    """The same of what was read already; return the main figure as the page has it, empty if there is none."""
    root, study = rows.root, rows.study
    with TemporaryDirectory() as temporary:
        output = Path(temporary)
        entries = entries_of(rows, output)
        images = {each.stem: picture(output / "figures" / f"{each.stem}.png") for each in entries if is_figure(each)}
        figures = sorted((each for each in entries if is_figure(each)), key=lambda each: each.stem != study.main_figure)
        main = figures[0] if figures and study.main_figure else None
        used_data = rows.comparison.data if any(each.uses_data for each in entries) else ()
        content = _content(rows) | {"entries": entries, "images": images, "main": main, "used_data": used_data}
        made: dict[str, str | bytes] = {
            "curves.csv": rows.curves.to_csv(index=False),
            "summary.csv": rows.summary.to_csv(index=False),
        }
        made |= {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()}
        for name, make in study.rebuilt.items():
            made[f"{name}.csv"] = resolve(make)(root).to_csv(index=False, float_format="%.6g")
        # The page, which shows all the others, comes last.
        made |= {file: template(file).render(content) for file in ("report.md", "report.html")}
    (root / "figures").mkdir(exist_ok=True)
    for file, text in made.items():
        write_atomically(root / file, text)
    return images[main.stem][0] if main else ""


def is_figure(entry: FigureEntry | TableEntry) -> TypeGuard[FigureEntry]:
    return isinstance(entry, FigureEntry)


def _content(rows: Rows) -> dict[str, Any]:
    """What the templates say, but for figures."""
    root, study, comparison, summary = rows.root, rows.study, rows.comparison, rows.summary
    measured = (path.name for form in ("*.csv*", "*.parquet") for path in root.glob(form))
    queued, unfinished = unfinished_runs(root, comparison, rows.curves)
    main = with_something(main_table(summary, comparison)) if comparison.variants else pd.DataFrame()
    commands = commands_of(comparison)
    kernels = [variant.kernel for variant in comparison.variants]
    has_budgets = comparison.config.get("budgets", "none") != "none"  # the rate has another schedule than the one named
    return {
        "question": study.asked(comparison),
        **{each: study.said(getattr(study, each)) for each in ("method", "not_shown")},
        "answer": answer(rows),
        "setting": setting(comparison, study.measured),
        "comparison": comparison,
        "commands": "\n".join(commands),
        "these": "These commands, one after the other," if len(commands) > 1 else "",
        "settings": comparison.config | ({"schedule": "constant, to zero at each budget"} if has_budgets else {}),
        "table": main,
        "below": f"{how_to_read(main, summary, comparison)} {study.said(study.table_note)}".strip(),
        "groups": [place for place, (kernel, before) in enumerate(pairwise(kernels), 1) if kernel != before],
        "queued": queued,
        "unfinished": unfinished,
        "notes": notes_in_words(comparison),
        "happenings": happenings(root, comparison),
        "claims": [row for row in rows.judged if row.was_asked],
        "rule": RULE,
        "live": interactive(rows),
        "live_first": study.main_figure in ("", CURVES),
        "tables": [
            *tables_in(rows),
            *sorted({*measured, *(f"{each}.csv" for each in study.rebuilt)} - {*FILES, PACKED_RUNS}),
        ],
        "repeatability": template("repeatability.txt").render(comparison=comparison),
        "environment": {"commit": comparison.git.commit, **comparison.machine, **comparison.versions},
        "program": "linear-rope" if comparison.command.startswith("linear-rope") else "python -m experiments",
    }


def tables_in(rows: Rows) -> list[str]:
    """The files of those of its two tables that have rows."""
    return [name for name, table in {"curves.csv": rows.curves, "summary.csv": rows.summary}.items() if len(table)]


def table_for_a_paper(root: Path, form: str, baseline: str | None = None) -> str:
    """The main table of a comparison as ``tables.paper_table`` has it. Raises ValueError if there is none, or no such
    variant as the baseline.
    """
    comparison = read_comparison(root)
    if not comparison.variants:
        raise ValueError(
            f"--format: {root} trains nothing, so it has no main table; its tables are the CSV files of its report"
        )
    check_runs(root, comparison)
    comparison = with_baseline(comparison, baseline)
    return paper_table(summarise(root, comparison), comparison, form)


def result_table(root: Path) -> Table:
    """The main table of a comparison for a terminal. Raises ValueError if ``root`` is not a comparison."""
    comparison = read_comparison(root)
    return terminal_table(summarise(root, comparison), comparison)


def picture(path: Path) -> tuple[str, tuple[int, int]]:
    """The file in base64, and its size in CSS pixels; nothing if there is none."""
    if not path.exists():
        return "", (0, 0)
    with Image.open(path) as image:
        width, height = (round(pixels * 96 / DOTS_PER_INCH) for pixels in image.size)
    return base64.b64encode(path.read_bytes()).decode(), (width, height)
