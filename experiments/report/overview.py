"""The page over all comparisons of a directory: what each asked, its answer, a small picture, links."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments.records.files import write_atomically
from experiments.records.record import read_comparison
from experiments.report.evidence import Evidence, read_evidence
from experiments.report.interactive import Interactive, interactive
from experiments.report.render import template
from experiments.report.report import rows_of, write
from experiments.show.entries import tables_over
from experiments.show.style import label as label_of
from experiments.show.words import setting
from experiments.study import Study

WIDTH, HEIGHT = 280, 130
MOST_LINES = 5
LABEL = 12
"""the height of a line's name"""


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
        evidence = read_evidence(root, studies[read_comparison(root).study])
        cards.append(_card(evidence, write(evidence)))
        say(str(root / "report.html"))
        of_study.setdefault(evidence.study.name, []).append(cards[-1])
    shown: list[dict[str, Any]] = []
    for name, of_each in of_study.items():
        study = studies[name]
        tables = [
            {"title": each.title, "caption": each.caption, "table": rows_of(each.table)}
            for each in tables_over(study, [directory / card["name"] for card in of_each])
        ]
        shown += tables
        if tables:
            page = directory / f"{name}.md"
            words = {each: study.said(getattr(study, each)) for each in ("question", "method", "not_shown")}
            write_atomically(page, template("study.md").render(**words, tables=tables, comparisons=of_each))
            say(str(page))
    content = {"name": directory.resolve().name, "cards": cards, "size": (WIDTH, HEIGHT), "tables": shown}
    # A table over the comparisons of one study comes first where there is no other study.
    write_atomically(index, template("index.html").render(content, alone=len(of_study) == 1))
    return index


def _card(evidence: Evidence, main: dict[str, Any] | None) -> dict[str, Any]:
    """A comparison on the page; ``main`` is its main figure as a report has it, shown where there are no curves."""
    study, comparison = evidence.study, evidence.comparison
    return {
        "name": evidence.root.name,
        "question": study.said(study.question),
        "answer": evidence.answer,
        "setting": setting(comparison, study.measured),
        "curves": _lines(interactive(evidence.curves, evidence.summary, comparison, MOST_LINES)),
        "main": main,
        "has_table": bool(comparison.variants),
        "tables": evidence.tables,
    }


def _lines(live: Interactive | None) -> list[dict[str, Any]]:
    """The shown curves of the first split, scaled to the picture, without the steep beginning.

    Of each its looks and names, its ``points``, the height of the last one as ``end`` and of its name as ``label``.
    """
    if live is None:
        return []
    curves: Any = next(iter(live.curves.values()))["curves"]
    shown = [(line, curves[line.name]) for line in live.lines if line.shown]
    last = max(curve["step"][-1] for _, curve in shown) or 1
    late = [y for _, curve in shown for x, y in zip(curve["step"], curve["mean"], strict=True) if x >= 0.15 * last]
    low, high = min(late), max(late)

    def place(x: float, y: float) -> str:
        return f"{x / last * WIDTH:.1f},{(high - y) / ((high - low) or 1) * (HEIGHT - 10) + 5:.1f}"

    lines: list[dict[str, Any]] = []
    for line, curve in sorted(shown, key=lambda each: -each[1]["mean"][-1]):
        points = [place(x, y) for x, y in zip(curve["step"], curve["mean"], strict=True)]
        words = {"short": label_of(line.name, 18), "points": " ".join(points)}
        lines.append(line._asdict() | words | {"end": float(points[-1].partition(",")[2])})
    label = HEIGHT + LABEL - 2.0
    for each in reversed(lines):  # each name above the one below it
        label = each["label"] = min(label - LABEL, each["end"] + 4)
    label = -2.0
    for each in lines:  # and none above the picture
        label = each["label"] = max(label + LABEL, each["label"])
    return lines
