"""What a report has of a study's own: its figures, saved, and its tables, in reading order."""

import pkgutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from experiments.figures import style
from experiments.show.draw import draw
from experiments.show.keys import Figure, Quantity, shown_of
from experiments.show.rows import Rows
from experiments.show.tables import table_of
from experiments.study import Entries, FigureEntry, Study, TableEntry


def entries_of(rows: Rows, output: Path) -> Entries:
    """Saves the figures in ``output / "figures"``. Raises ValueError if a file of the comparison is wrong."""
    shown, entries = shown_of(rows.study), Entries()
    for figure in (figure for figure in shown.figures if rows.holds(figure.when)):
        for one, quantities, words in _each(figure, shown.quantities, rows):
            stem, title, caption = (rows.filled(text, **words) for text in (one.stem, one.title, one.caption))
            if style.save_figure(partial(draw, one, quantities, rows), output / "figures", stem):
                entries.append(FigureEntry(stem, title, caption, one.uses_data))
    for table in (table for table in shown.tables if rows.holds(table.when)):
        made = table_of(table, shown.quantities, rows)
        if made is not None and len(made):
            attributes: Any = made.attrs
            title, caption = (rows.filled(text, **attributes) for text in (table.title, table.caption))
            entries.append(TableEntry(title, made, caption, table.uses_data))
    return entries


def tables_over(study: Study, roots: Sequence[Path]) -> list[TableEntry]:
    """The tables of a study over several of its comparisons; none of those that have nothing to show."""
    made = [(table, pkgutil.resolve_name(table.make)(roots)) for table in shown_of(study).overview]
    return [
        TableEntry(study.said(table.title), found, study.said(table.caption, **found.attrs))
        for table, found in made
        if found is not None
    ]


def _each(
    figure: Figure, quantities: dict[str, Quantity], rows: Rows
) -> Iterator[tuple[Figure, dict[str, Quantity], dict[str, Any]]]:
    """A figure, or one for each value of the column that it says: with the quantities and words of each."""
    if not figure.each:
        yield figure, quantities, {}
        return
    names = [figure.quantity] if isinstance(figure.quantity, str) else figure.quantity
    found = rows.of(quantities[names[0]])
    for value in sorted(found[figure.each].unique()) if len(found) else ():
        only = {
            name: replace(each, where=each.where | {figure.each: value}) if name in (*names, figure.beneath) else each
            for name, each in quantities.items()
        }
        yield figure, only, {"each": value}
