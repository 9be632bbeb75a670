"""Tables from their keys: strings, ready to be shown."""

import pkgutil
from typing import Any

import pandas as pd

from experiments.show.keys import Quantity, Table
from experiments.show.rows import Rows, summary
from experiments.show.words import amount, with_interval

NOTHING = "-"


def table_of(table: Table, quantities: dict[str, Quantity], rows: Rows) -> pd.DataFrame | None:
    """A row of strings for each value of the columns that name a row; a dash where nothing was measured.

    None if there is nothing to show.
    """
    if table.make:
        made: pd.DataFrame | None = pkgutil.resolve_name(table.make)(rows)
        return made
    names = [table.quantity] if isinstance(table.quantity, str) else table.quantity
    columns: dict[str, pd.Series[Any]] = {}
    for name in names:
        columns |= _columns(table, quantities[name], rows)
    if not columns:
        return None
    order = list(dict.fromkeys(place for each in columns.values() for place in each.index))
    joined = pd.DataFrame(columns).reindex(order).fillna(NOTHING)
    heads = [rows.filled(quantities[each].label) if each in quantities else each for each in table.rows]
    joined.index = joined.index.set_names(heads)
    return joined.reset_index()


def _columns(table: Table, quantity: Quantity, rows: Rows) -> "dict[str, pd.Series[Any]]":
    """By head the cells of a quantity, each at its row."""
    values = rows.of(quantity)
    if values.empty:
        return {}
    values = rows.chosen(values, table.where)
    by = list(table.rows)
    found = summary(values, [*by, table.column] if table.column else by, quantity)
    if not table.interval:
        found["low"] = float("nan")
    ends = found[["mean", "low", "high"]].to_numpy(float)
    cells = [with_interval(mean, low, high, quantity.format) for mean, low, high in ends]
    found = found.assign(cell=cells).set_index(by)
    columns = {}
    if table.count:
        columns["n"] = found.groupby(level=by, sort=False)["n"].max().astype(int).astype(str)
    if not table.column:
        return columns | {rows.filled(quantity.label): found["cell"]}
    heads = sorted(found[table.column].unique())
    return columns | {_head(value, table): found[found[table.column] == value]["cell"] for value in heads}


def _head(value: Any, table: Table) -> str:
    if table.column_format == "engineering":
        return amount(value)
    return format(value, table.column_format) if table.column_format else str(value)
