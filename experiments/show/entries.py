"""What a report has of a study's own: its figures, saved, and its tables, in reading order."""

import pkgutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from experiments.show import style
from experiments.show.draw import draw
from experiments.show.keys import Figure, Quantity, Table, shown_of
from experiments.show.rows import Rows
from experiments.show.tables import table_of
from experiments.study import Entries, FigureEntry, Study, TableEntry

EntryT = TypeVar("EntryT", Figure, Table)


def entries_of(rows: Rows, output: Path) -> Entries:
    """Saves the figures in ``output / "figures"``. Raises ValueError if a file of the comparison is wrong."""
    shown, entries = shown_of(rows.study), Entries()
    for figure in (figure for figure in shown.figures if rows.holds(figure.when)):
        for one, quantities, words in _each(figure, shown.quantities, rows):
            stem, title, caption = (rows.filled(text, **words) for text in (one.stem, one.title, one.caption))
            if style.save_figure(partial(draw, one, quantities, rows), output / "figures", stem):
                entries.append(FigureEntry(stem, title, caption, one.uses_data))
    for table in (table for table in shown.tables if rows.holds(table.when)):
        for of_each, quantities, words in _each(table, shown.quantities, rows):
            made = table_of(of_each, quantities, rows)
            if made is not None and len(made):
                words |= {str(name): value for name, value in made.attrs.items()}
                title, caption = (rows.filled(text, **words) for text in (of_each.title, of_each.caption))
                entries.append(TableEntry(title, made, caption, of_each.uses_data))
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
    entry: EntryT, quantities: dict[str, Quantity], rows: Rows
) -> Iterator[tuple[EntryT, dict[str, Quantity], dict[str, Any]]]:
    """A figure or table, or one for each value of the column that it says: with the quantities and words of each."""
    if not entry.each:
        yield entry, quantities, {}
        return
    names = [entry.quantity] if isinstance(entry.quantity, str) else list(entry.quantity)
    if isinstance(entry, Figure):
        names += [entry.beneath, entry.x_marks]
    found = rows.of(quantities[names[0]])
    for value in found[entry.each].unique() if len(found) else ():
        only = {
            name: replace(each, where=each.where | {entry.each: value}) if name in names else each
            for name, each in quantities.items()
        }
        yield entry, only, {"each": value, **rows.study.words.get(str(value), {})}
