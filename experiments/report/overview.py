"""The page over all comparisons of a directory: what each asked, its answer, a small picture, links."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiments.records.files import write_atomically
from experiments.records.record import read_comparison
from experiments.report.render import template
from experiments.report.report import picture, tables_in, write
from experiments.show.draw import draw
from experiments.show.entries import figures_over, tables_over
from experiments.show.keys import Figure, shown_of
from experiments.show.rows import Rows, read_rows
from experiments.show.style import save_figure
from experiments.show.words import answer, setting
from experiments.study import FigureEntry, Study, TableEntry

SMALL = Figure(
    stem="small",
    title="",
    caption="",
    quantity="validation",
    x="step",
    x_label="optimiser step",
    only="experiments.show.words:first_look",
    spread="none",
    x_from=0.15,
    uses_data=False,
    size=(2.6, 1.8),
)
"""the validation curves of few variants, without the steep beginning"""


def comparisons_in(directory: Path) -> list[Path]:
    """The comparisons that a directory holds, by name."""
    return sorted(path.parent for path in directory.glob("*/comparison.json"))


def write_overview(directory: Path, studies: Mapping[str, Study], say: Callable[[str], None]) -> Path:
    """Rebuild the report of every comparison in a directory, and the index.html over them; return its path.

    The tables of a study over several comparisons are on that page and, in Markdown, in ``<study>.md`` beside it.
    ``say`` is told of each report that was written. Raises ValueError as ``write_report`` does; reports that were
    finished before stay.
    """
    index = directory / "index.html"
    cards, of_study = [], dict[str, list[dict[str, Any]]]()
    for root in comparisons_in(directory):
        rows = read_rows(root, studies[read_comparison(root).study])
        cards.append(_card(rows, write(rows)))
        say(str(root / "report.html"))
        of_study.setdefault(rows.study.name, []).append(cards[-1])
    shown, drawn = list[TableEntry](), list[tuple[FigureEntry, str, tuple[int, int]]]()
    for name, of_each in of_study.items():
        study = studies[name]
        roots = [directory / card["name"] for card in of_each]
        tables, figures = tables_over(study, roots), figures_over(study, roots, directory)
        shown += tables
        drawn += [(each, *picture(directory / "figures" / f"{each.stem}.png")) for each in figures]
        if tables:
            page = directory / f"{name}.md"
            words = {each: study.said(getattr(study, each)) for each in ("question", "method", "not_shown")}
            of_all = {"tables": tables, "figures": figures, "comparisons": of_each}
            write_atomically(page, template("study.md").render(words | of_all))
            say(str(page))
    content = {"name": directory.resolve().name, "cards": cards, "tables": shown, "figures": drawn}
    # A table over the comparisons of one study comes first where there is no other study.
    write_atomically(index, template("index.html").render(content, alone=len(of_study) == 1))
    return index


def _card(rows: Rows, main: str) -> dict[str, Any]:
    """A comparison on the page; ``main`` is its main figure as a report has it, shown where there are no curves."""
    study, quantities = rows.study, shown_of(rows.study).quantities
    with TemporaryDirectory() as directory:
        save_figure(partial(draw, SMALL, quantities, rows), Path(directory), "small")
        image, _ = picture(Path(directory) / "small.png")
    return {
        "name": rows.root.name,
        "question": study.asked(rows.comparison),
        "answer": answer(rows),
        "setting": setting(rows.comparison, study.measured),
        "image": image or main,
        "has_table": bool(rows.variants),
        "tables": tables_in(rows),
    }
