"""What a report has of a study's own: its figures, saved, and its tables, in reading order."""

import pkgutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from experiments.show import style
from experiments.show.draw import draw
from experiments.show.keys import Figure, Quantity, Table, shown_of
from experiments.show.rows import Rows, RowsOver, read_rows
from experiments.show.tables import table_of
from experiments.study import Entries, FigureEntry, Study, TableEntry


def entries_of(rows: Rows, output: Path) -> Entries:
    """Saves the figures in ``output / "figures"``. Raises ValueError if a file of the comparison is wrong."""
    shown, entries = shown_of(rows.study), Entries()
    every: list[Figure | Table] = [*shown.figures, *shown.tables]
    for entry in every:
        for quantities, words in _each(entry, shown.quantities, rows) if rows.holds(entry.when) else ():
            if isinstance(entry, Figure):
                stem, title, caption = (rows.filled(text, **words) for text in (entry.stem, entry.title, entry.caption))
                if style.save_figure(partial(draw, entry, quantities, rows), output / "figures", stem):
                    entries.append(FigureEntry(stem, title, caption, entry.uses_data))
                continue
            made = table_of(entry, quantities, rows)
            if made is not None and len(made):  # else its caption may lack words
                words |= {str(name): value for name, value in made.attrs.items()}
                title, caption = (rows.filled(text, **words) for text in (entry.title, entry.caption))
                entries.append(TableEntry(title, made, caption, entry.uses_data))
    return entries


def tables_over(study: Study, roots: Sequence[Path]) -> list[TableEntry]:
    """The tables of a study over several of its comparisons; none of those that have nothing to show."""
    made = [(table, pkgutil.resolve_name(table.make)(roots)) for table in shown_of(study).overview]
    return [
        TableEntry(study.said(table.title), found, study.said(table.caption, **found.attrs))
        for table, found in made
        if found is not None
    ]


def figures_over(study: Study, roots: Sequence[Path], output: Path) -> list[FigureEntry]:
    """The figures of the same, saved in ``output / "figures"``; none of those that have nothing to show."""
    shown, found = shown_of(study), list[FigureEntry]()
    of_one = {root.name: root for root in roots}
    for figure in shown.overview_figures:
        if figure.comparison and figure.comparison not in of_one:
            continue
        rows = read_rows(of_one[figure.comparison], study) if figure.comparison else RowsOver(roots, study)
        if style.save_figure(partial(draw, figure, shown.quantities, rows), output / "figures", figure.stem):
            found.append(FigureEntry(figure.stem, rows.filled(figure.title), rows.filled(figure.caption)))
    return found


def _each(
    entry: Figure | Table, quantities: dict[str, Quantity], rows: Rows
) -> Iterator[tuple[dict[str, Quantity], dict[str, Any]]]:
    """Of a figure or table, or of one for each value of the column that it says, the quantities and the words."""
    if not entry.each:
        yield quantities, {}
        return
    names = [*entry.quantities, *([entry.beneath, entry.x_marks] if isinstance(entry, Figure) else [])]
    found = rows.of(quantities[names[0]])
    for value in found[entry.each].unique() if len(found) else ():
        only = {
            name: replace(quantities[name], where=quantities[name].where | {entry.each: value})
            for name in filter(None, names)
        }
        yield quantities | only, {"each": value, **rows.study.words.get(str(value), {})}
