"""The keys of study.toml that say what is shown. An unknown key or a wrong type is an error that names it."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from experiments.study import Study, read_toml

Scale = Literal["linear", "log", "symlog"]
Where = dict[str, Any]
"""column = value, or a list of values; a column of the rows, or a fact of their variants"""


class Key(Struct, forbid_unknown_fields=True):
    """What all entries have in common: nothing but the keys they name."""


class Pair(Key, kw_only=True):
    """A difference of two variants, ``a`` minus ``b``."""

    a: str
    b: str
    name: str
    """what a legend or a row calls it"""


class Quantity(Key, kw_only=True):
    """A value of each variant and seed, and maybe at places along an axis; a table ``[quantities.NAME]``."""

    like: str = ""
    """the quantity before it, of the study or common, that has all keys which are not given here"""
    label: str = ""
    """what axes and heads call it"""
    source: str = "values"
    """"values": one of each finished run; "runs": all that training recorded, by step; else ``module:function`` that
    reads a table from the directory of a comparison, or gives None; of a module of the study without its package"""
    column: str = "value"
    """that has the values"""
    where: Where = {}
    """the rows that count"""
    without: Where = {}
    """the rows that do not"""
    minus: str = ""
    """subtract this variant, or each variant's own "baseline", seed by seed"""
    pairs: list[Pair] = []
    """these differences, seed by seed; their names are in the column "pair" """
    format: str = ".3f"
    """of a number, as in Python"""
    scale: Scale = "linear"
    """of its axis"""
    linthresh: float = 1e-3
    """up to where a "symlog" axis is linear"""
    least: float | None = None
    """where its axis begins"""
    limits: tuple[float, float] = (-inf, inf)
    """where intervals are cut, as an accuracy's at 0 and 1"""
    spread: Literal["interval", "quartiles", "range", "columns", "text"] = "interval"
    """mean with 95 % interval over seeds, median with quartiles, mean with least and largest, the columns low and
    high that its source has, or none: its values are texts, of tables alone"""
    mean: Literal["arithmetic", "geometric"] = "arithmetic"
    factor: float = 1.0
    """all values times this"""


class Entry(Key, kw_only=True):
    """What figures and tables have in common."""

    title: str
    caption: str
    like: str = ""
    """the entry of common.toml with this name, or the study's figure before it with this stem, has all keys that are
    not given here; of a list of names each is one"""
    when: Where = {}
    """words (rows.py) and the values they have to have; else the entry is left out"""
    uses_data: bool = True
    """whether it shows something of the comparison's data; what is to know of them stands above all figures then. Of a
    study that trains nothing it does not, unless said"""
    quantity: str | list[str] = []
    """a name, or several: of a figure each then has a row of panels (lines) or a panel (dots), of a table a column"""
    each: str = ""
    """column: a figure or table for each of its values; in its words {each}, and what the study's words say of each"""

    @property
    def quantities(self) -> list[str]:
        return [self.quantity] if isinstance(self.quantity, str) else self.quantity


class Figure(Entry, kw_only=True):
    """A picture; a table ``[[figures]]``."""

    stem: str
    """its file name without suffix"""
    kind: str = "lines"
    """"lines" along an axis, "dots" with intervals, a row each, or ``module:function`` that draws it from ``Rows``"""
    beneath: str = ""
    """a quantity that is drawn as thin lines with the same colours: what is expected; of dots its last, upright"""
    note: str = ""
    """behind the name of the data, above the panels"""
    panel: str = ""
    """column: a panel for each of its values"""
    row: str = ""
    """column: a row of panels for each of its values"""
    line: str = "variant"
    """column: a line, or a row of dots, for each of its values"""
    spread: Literal["seeds", "range", "band", "interval", "marks", "none"] = "seeds"
    """beside the mean: a thin line or dot for each seed, a band from least to largest or of the 95 % interval, that
    interval at each mark, or that without a line between the means"""
    baseline: str = ""
    """this variant is shown in every panel: a dashed line at its mean (dots), a thin grey line (lines)"""
    only: str = ""
    """``module:function`` that makes of ``Rows`` the names of the variants that are shown; none: no figure"""
    order: Literal["given", "value"] = "given"
    """of the rows of dots"""
    beside: Literal["", "mean", "reached"] = ""
    """at the right of the rows of dots: their means, or how many of their seeds have a value; a mean stands only where
    all have one, and else an arrow at ``x_mark``"""
    group: str = ""
    """column: a gap between the rows of dots with different values"""
    zero: bool = False
    """a line at 0"""
    y_mark: float | str = ""
    """a dashed horizontal line there"""
    x: str = ""
    """column of the horizontal axis (lines)"""
    x_label: str = ""
    x_scale: Scale = "linear"
    x_ticks: Literal["", "values", "engineering", "decades"] = ""
    """a tick at each value, as numbers or as 1 M, or at 1, 2 and 5 of each decade; else as matplotlib likes"""
    x_from: float = 0.0
    """share of the axis that is left out at its beginning"""
    x_bins: int = 0
    """means over so many ranges: equal ones on a linear axis, else growing by a fixed factor"""
    x_mark: float | str = ""
    """a dotted vertical line there"""
    x_marks: str = ""
    """a quantity, at whose values dotted vertical lines stand in the colours of the lines that they belong to"""
    y_from: float = 0.0
    """share of the horizontal axis whose values do not set the vertical range"""
    y_share: Literal["all", "row", "column"] = "all"
    """panels with one vertical axis"""
    names: Literal["ends", "values", "legend"] = "ends"
    """lines are named at their ends, there with their last values, or in one legend below the figure"""
    columns: int = 4
    """panels side by side, at most"""
    size: tuple[float, float] = (3.1, 3.1)
    """inches of a panel"""
    comparison: str = ""
    """of an overview: the one that it shows; none: all"""


class Table(Entry, kw_only=True):
    """Rows of numbers; a table ``[[tables]]``."""

    make: str = ""
    """``module:function`` that makes it from ``Rows``, or gives None; the other keys are of no use then. Its ``attrs``
    are words for title and caption"""
    rows: tuple[str, ...] = ("variant",)
    """columns whose values together name a row"""
    column: str = ""
    """column whose values head the table's columns"""
    column_format: str = ""
    """of a value in the head"""
    interval: bool = True
    """mean [low, high], or the mean alone"""
    count: bool = False
    """a column n with the number of seeds"""
    floors: str = ""
    """a metric, whose floors stand below"""
    beneath: list[dict[str, str]] = []
    """rows of texts that stand below all others, as what was published"""


class Shown(Key, kw_only=True):
    """What a study shows."""

    quantities: dict[str, Quantity] = {}
    headline: list[str] = []
    figures: list[Figure] = []
    tables: list[Table] = []
    overview: list[Table] = []
    """over several of its comparisons: what makes them gets their directories"""
    overview_figures: list[Figure] = []
    """the same; one of a single comparison is that of its report with the same stem"""


LAST = ({"like": "rates"}, {"like": "rates-of-a-grid"})
"""figures and tables at the end of every study"""


@cache
def shown_of(study: Study) -> Shown:
    """Raises ValueError that names the study and the key if one of its entries is not as it should be."""
    common = read_toml(Path(__file__).with_name("common.toml"))
    quantities, uses_data = dict[str, Any](common["quantities"]), {"uses_data": bool(study.variants)}
    try:
        for name, quantity in study.quantities.items():
            quantities[name] = _filled(quantity, quantities) | {"like": ""}
        figures = [
            {"stem": each.get("like")} | uses_data | common["axes"].get(each.get("x"), {}) | each
            for each in _entries((*study.figures, *LAST[:1]), common["figures"])
        ]
        by_stem = {figure["stem"]: figure for figure in figures}
        entries = {
            "quantities": quantities,
            "headline": study.headline,
            "figures": figures,
            "overview_figures": [
                common["axes"].get(each.get("x"), {}) | by_stem.get(each["stem"], {}) | each
                for each in _entries(study.overview_figures, common["figures"])
            ],
            "tables": [uses_data | each for each in _entries((*study.tables, *LAST), common["tables"])],
            "overview": study.overview,
        }
        return msgspec.convert(entries, Shown)
    except (msgspec.ValidationError, KeyError) as error:
        raise ValueError(f"study {study.name}: {error}") from error


def _entries(given: Iterable[Mapping[str, Any]], common: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Entries of a study; one that is like several is one of each."""
    known = dict(common)
    for entry in given:
        names = entry.get("like")
        for name in names if isinstance(names, list) else [names]:
            filled = _filled({**entry, "like": name}, known) if name else {**entry}
            known.setdefault(filled.get("stem", ""), filled)
            yield filled


def _filled(entry: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """An entry with the keys of the common one that it is like, which may itself be like another."""
    return {**_filled(common[entry["like"]], common), **entry} if entry.get("like") else {**entry}
