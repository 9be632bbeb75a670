"""Tables from their keys: strings, ready to be shown."""

import pkgutil
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from experiments.judge.statistics import with_interval
from experiments.records.csv_files import NotMeasured
from experiments.show.keys import Quantity, Table
from experiments.show.rows import Rows, summary
from experiments.show.words import amount

NOTHING = "-"


def table_of(table: Table, quantities: dict[str, Quantity], rows: Rows) -> pd.DataFrame | None:
    """A row of strings for each value of the columns that name a row; a dash where nothing was measured.

    None if there is nothing to show.
    """
    if table.make:
        try:
            made: pd.DataFrame | None = pkgutil.resolve_name(table.make)(rows)
        except NotMeasured:
            return None
        return made
    columns: dict[str, pd.Series[Any]] = {}
    for name in table.quantities:
        columns |= _columns(table, quantities[name], rows)
    if not columns:
        return None
    order = list(dict.fromkeys(place for each in columns.values() for place in each.index))
    joined = pd.DataFrame(columns).reindex(order).fillna(NOTHING)
    heads = [rows.filled(quantities[each].label) if each in quantities else each for each in table.rows]
    joined.index = joined.index.set_names(heads)
    found = joined.reset_index()
    below = [*_floors(table, quantities[table.quantities[0]], rows, found), *table.beneath]
    return pd.concat([found, pd.DataFrame(below)]).reindex(columns=found.columns).fillna(NOTHING)


def _floors(table: Table, quantity: Quantity, rows: Rows, found: pd.DataFrame) -> Iterator[dict[str, str]]:
    """A row for each: its name, and its value in every column of numbers."""
    columns = [column for column in found.columns[len(table.rows) :] if column != "n"]
    for floor in rows.comparison.floors_of(rows.filled(table.floors)) if table.floors else ():
        value = format(quantity.factor * floor.value, quantity.format)
        yield {found.columns[0]: f"floor: {floor.name}", **dict.fromkeys(columns, value)}


def _columns(table: Table, quantity: Quantity, rows: Rows) -> "dict[str, pd.Series[Any]]":
    """By head the cells of a quantity, each at its row."""
    values = rows.of(quantity)
    if values.empty:
        return {}
    by = list(table.rows)
    found = summary(values, [*by, table.column] if table.column else by, quantity)
    if not table.interval:
        found["low"] = float("nan")
    if quantity.spread == "text":
        found["cell"] = found["mean"]
    else:
        ends = found[["mean", "low", "high"]].to_numpy(float)
        found["cell"] = [with_interval(mean, low, high, quantity.format) for mean, low, high in ends]
    found = found.set_index(by)
    columns = {}
    if table.count:
        columns["n"] = found.groupby(level=by, sort=False)["n"].max().astype(int).astype(str)
    if not table.column:
        return columns | {rows.filled(quantity.label): found["cell"]}
    heads = list(found[table.column].unique())
    heads = sorted(heads) if is_numeric_dtype(found[table.column]) else heads
    return columns | {_head(value, table): found[found[table.column] == value]["cell"] for value in heads}


def _head(value: Any, table: Table) -> str:
    if table.column_format == "engineering":
        return amount(value)
    return format(value, table.column_format) if table.column_format else str(value)
