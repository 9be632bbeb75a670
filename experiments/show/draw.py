"""Figures from their keys: lines and dots, in panels, in the suite's look."""

import pkgutil
from collections.abc import Iterable, Sequence
from itertools import product
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, PercentFormatter, StrMethodFormatter

from experiments.records.schema import Comparison, Floor
from experiments.show.keys import Figure, Quantity
from experiments.show.rows import Rows, summary
from experiments.show.style import (
    DOTS_PER_INCH,
    MUTED,
    kernel_style,
    label,
    label_powers_of_ten,
    legend_label,
    look_of,
    variant_style,
)
from experiments.show.words import amount

THIN, THICK, MARKS = 0.6, 1.8, 7
INK = "#333333"
"""of a column of numbers"""
LETTERS = 11
"""of an axis' name in an inch"""
LETTER, LINE, HANDLE = 0.066, 10.5, 0.8
"""inches of a letter of a name, points of a line of it, inches of what stands before it in a legend"""
STEP = 0.015
"""share of the axis between two intervals at one place"""
OWN_LOOK = ("variant", "encoding", "without_length")
"""columns by which a line looks as its variant does, also in other figures"""
DOTTED, DASHED = (0, (1, 2)), (0, (4, 2))
ON_AXIS: dict[str, tuple[Any, Any]] = {
    "linear": (lambda x: x, lambda place: place),
    "log": (np.log, np.exp),
    "symlog": (
        lambda x: np.where(x < 1, x, 1 + np.log10(np.maximum(x, 1))),
        lambda place: np.where(place < 1, place, 10 ** (place - 1)),
    ),
}
"""from values to places on an axis, and back"""
CALLED = {"dim": "width", "num_features": "M ="}
"""columns whose name is not what a title says"""
NOTES = {
    ("lines", "seeds"): "Thin: each seed. Thick: mean of the finished seeds.",
    ("lines", "range"): "Line: mean; band: least to largest of the seeds.",
    ("lines", "band"): "Line: mean; band: 95 % interval (Student's t).",
    ("lines", "interval"): "Mark: mean; bar: 95 % interval (Student's t).",
    ("lines", "marks"): "Mark: mean; bar: 95 % interval (Student's t).",
    ("dots", "seeds"): "Small dots: seeds; marker: mean; line: 95 % interval (Student's t).",
}
"""what the marks are, by kind and spread"""
ONE_SEED = "One seed: no mean, no interval."


def draw(figure: Figure, quantities: dict[str, Quantity], rows: Rows) -> Picture | None:
    """The picture; None if there is nothing to show."""
    if ":" in figure.kind:
        made: Picture | None = pkgutil.resolve_name(figure.kind)(rows)
        return made
    names = [figure.quantity] if isinstance(figure.quantity, str) else figure.quantity
    found = {name: rows.of(quantities[name]) for name in names}
    if figure.only:
        wanted = pkgutil.resolve_name(figure.only)(rows)
        found = {name: part[part["variant"].isin(wanted)] for name, part in found.items()}
    found = {name: part for name, part in found.items() if len(part)}
    if not found:
        return None
    return (Lines if figure.kind == "lines" else Dots)(figure, quantities, found, rows).picture()


class Drawing:
    """What both kinds have in common."""

    def __init__(
        self, figure: Figure, quantities: dict[str, Quantity], found: dict[str, pd.DataFrame], rows: Rows
    ) -> None:
        self.figure, self.rows, self.quantities = figure, rows, quantities
        self.found = {name: self._told(name, part) for name, part in found.items()}
        self.names = self._names() if figure.line == "variant" else {}

    def _told(self, name: str, part: pd.DataFrame) -> pd.DataFrame:
        """The rows of a quantity, and whether each is of a run that is finished."""
        done: Any = True
        if self.quantities[name].source == "runs":
            finished = {(variant, seed) for variant, seeds in self.rows.finished.items() for seed in seeds}
            done = [run in finished for run in zip(part["variant"], part["seed"], strict=True)]
        return part.assign(quantity=name, done=done)

    def _names(self) -> dict[str, str]:
        """What each variant is called: without what its panel's title says, and without the usual settings."""
        facts = self.rows.facts.to_dict("records")
        usual = next((fact["setting"] for fact in facts if fact["base"] == fact["variant"]), "")
        name = {"kernel": "encoding", "base": "setting"}.get(self.figure.panel, "base")
        return {
            fact["variant"]: ", ".join(
                dict.fromkeys([fact[name], *([fact["setting"]] if fact["setting"] not in (usual, "") else [])])
            )
            for fact in facts
        }

    def text(self, value: Any) -> str:
        """The name of a line, or of a row of dots; and how many of its runs failed."""
        is_variant = self.figure.line == "variant"
        told = label(self.names.get(value, str(value)), 60) if is_variant else legend_label(str(value))
        return f"{told}\n({self.rows.failures[value]})" if is_variant and value in self.rows.failures else told

    def looks(self, values: pd.DataFrame) -> dict[Any, dict[str, Any]]:
        """A look for each value of the column of lines: a variant's own, or one of a list, the same in every panel."""
        line = self.figure.line
        if "kernel" in values and "variant" not in values:  # competitors, which nobody trained
            first = values.drop_duplicates(line)[[line, "kernel", "position"]].to_numpy()
            return {value: kernel_style(kernel, position) for value, kernel, position in first}
        if line in OWN_LOOK:
            first = values.drop_duplicates(line)[[line, "variant"]].to_numpy()
            return {
                value: variant_style(self.rows.variants[name])
                | ({"markerfacecolor": "white"} if line == "without_length" and "@" in value else {})
                for value, name in first
                if name in self.rows.variants
            }
        return {value: look_of(place) for place, value in enumerate(values[line].dropna().unique())}

    def finish(self, picture: Picture, more: str = "") -> Picture:
        """The line at the head."""
        spread = NOTES.get((self.figure.kind, self.figure.spread), "")
        if self.figure.spread in BESIDE_MEANS and len(self.rows.comparison.seeds) == 1:
            spread = ONE_SEED
        if self.figure.uses_data:
            note = " ".join(filter(None, [self.rows.filled(self.figure.note), spread]))
            head(picture, self.rows.comparison, note + more)
        return picture


class Lines(Drawing):
    """Lines along an axis."""

    def picture(self) -> Picture:
        figure = self.figure
        self.table = pd.concat([self._along(part) for part in self.found.values()])
        self.base = self.table[self.table["variant"] == figure.baseline] if figure.baseline else self.table[:0]
        if figure.baseline and figure.baseline not in self.rows.variants:  # as uniform attention: no line of its own
            self.table = self.table[self.table["variant"] != figure.baseline]
        self.expected = self._along(self.rows.of(self.quantities[figure.beneath])) if figure.beneath else self.base[:0]
        self.by = [
            each
            for each in ("quantity", figure.row, figure.panel)
            if each in self.table and (self.table[each].nunique() > 1 or each == figure.panel)
        ]
        self._check()
        self.every_look = self.looks(self.table)
        self.span = float(self.table[figure.x].min()), float(self.table[figure.x].max())
        picture, panels = self._panels()
        cut = self._vertical(picture)
        floors, more = self._floors(picture)
        for axes, part in panels:
            self._panel(axes, part)
            mark_floors(axes, floors if figure.names == "legend" else [])
        self._horizontal(picture.axes)
        if figure.spread in ("interval", "marks") and any(self.quantities[name].scale == "log" for name in self.found):
            every, columns = picture.axes, columns_of(picture.axes[0])
            for place in range(0, len(every), columns) if figure.y_share == "row" else range(columns):
                shared = slice(place, place + columns) if figure.y_share == "row" else slice(place, None, columns)
                end_below_the_lowest(every[shared])
        if figure.names == "legend":
            texts = [self.text(value) for value in self.table[figure.line].unique()]
            longest = max(len(line) for text in texts for line in text.split("\n"))
            columns = max(1, int(picture.get_figwidth() / (LETTER * longest + HANDLE)))
            legend_below(picture, picture.axes, min(columns, 3), handlelength=3.5)
        self.finish(picture, cut + more + self._absent())
        if figure.names != "legend":
            name_ends(picture, floors)
        return picture

    def _along(self, table: pd.DataFrame) -> pd.DataFrame:
        """The part of the axis that is shown; in ranges that grow by a fixed factor, if it says so."""
        figure = self.figure
        if table.empty:
            return table
        table = table[table[figure.x] >= figure.x_from * table[figure.x].max()]
        if not figure.x_bins or table[figure.x].nunique() <= figure.x_bins:
            return table
        last = table[figure.x].max()
        if figure.x_scale == "linear":
            edges = np.linspace(0, last, figure.x_bins + 1)[1:-1]
        else:
            edges = np.unique(np.geomspace(1, last + 1, figure.x_bins).astype(int))
        keys = [key for key in (figure.panel, figure.row, figure.line, *KEPT) if key in table]
        ranges = table.assign(bin=np.digitize(table[figure.x], edges))
        grouped = ranges.groupby([*dict.fromkeys(keys), "bin"], sort=False, dropna=False)
        return grouped[[figure.x, "value"]].mean().reset_index()

    def _check(self) -> None:
        """Raises ValueError if a line would be the mean of several variants."""
        if "variant" not in self.table:
            return
        several = self.table.groupby([*self.by, self.figure.line, self.figure.x], dropna=False)["variant"].nunique()
        if several.max() > 1:
            raise ValueError(
                f"figures.{self.figure.stem}: {several.idxmax()} has several variants; another panel or line parts them"
            )

    def _panels(self) -> tuple[Picture, list[tuple[Axes, pd.DataFrame]]]:
        """The panels with their titles, each with its rows."""
        figure, by = self.figure, self.by
        places = [self.table[each].dropna().unique() for each in by]
        ordered = (sorted(found) if each == figure.row else found for each, found in zip(by, places, strict=True))
        keys = list(product(*ordered))
        parts = {key: self.table[(self.table[by] == list(key)).all(axis=1)] if by else self.table for key in keys}
        columns = len(places[-1]) if len(by) > 1 else min(figure.columns, len(parts))
        count = -(-len(parts) // columns)
        columns = columns if len(by) > 1 else -(-len(parts) // count)
        texts = [self.text(value) for value in self.table[figure.line].unique()] if figure.names != "legend" else []
        longest = max((len(line) for text in texts for line in text.split("\n")), default=0)
        size = figure.size[0] + LETTER * longest, figure.size[1]
        share: Any = {"all": True, "row": "row", "column": "col"}[figure.y_share]
        picture, grid = grid_of(count, columns, size, (0.3, 0.5), 4.5, sharex=True, sharey=share)
        for axes in grid.flat[len(parts) :]:
            axes.remove()
        shown = list(zip(grid.flat, parts.values(), strict=False))
        for (axes, part), key in zip(shown, keys, strict=True):
            axes.set_title(legend_label(self._title(key)) if by else "")
            quantity = self.quantities[part["quantity"].iloc[0] if len(part) else next(iter(self.found))]
            if len(self.found) > 1 and axes.get_subplotspec().is_first_col():
                axes.set_ylabel(fill(self.rows.filled(quantity.label), int(LETTERS * figure.size[1])))
        if len(self.found) == 1:
            text = self.rows.filled(self.quantities[next(iter(self.found))].label)
            picture.supylabel(fill(text, int(LETTERS * picture.get_figheight())), fontsize=10)
        return picture, shown

    def _title(self, key: tuple[Any, ...]) -> str:
        """The value of a panel, and what row it is in."""
        told = dict(zip(self.by, key, strict=True))
        return ", ".join(_titled(each, told[each]) for each in (self.figure.panel, self.figure.row) if each in told)

    def _panel(self, axes: Axes, part: pd.DataFrame) -> None:
        """The lines of a panel: their means, and what is beside them."""
        figure = self.figure
        if part.empty:
            axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=MUTED)
            return
        quantity = self.quantities[part["quantity"].iloc[0]]
        self._beneath(axes, part)
        looks = self.looks(part) if figure.line in OWN_LOOK else self.every_look
        values = list(part[figure.line].unique())
        for place, (value, of_line) in enumerate(part.groupby(figure.line, sort=False)):
            self._line(axes, of_line, value, looks[value], place - (len(values) - 1) / 2, quantity)
        number_axis(axes.yaxis, quantity)
        if quantity.scale != "linear":
            axes.set_yscale(quantity.scale, **({"linthresh": quantity.linthresh} if quantity.scale == "symlog" else {}))
            label_powers_of_ten(axes)
            if quantity.format.startswith(","):
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
                axes.yaxis.set_minor_locator(NullLocator())
        if quantity.least is not None:
            axes.set_ylim(bottom=quantity.least)

    def _beneath(self, axes: Axes, part: pd.DataFrame) -> None:
        """What is drawn for comparison: the baseline in grey, what is expected, 0, and marks."""
        figure = self.figure
        look: dict[str, Any] = {"color": MUTED, "linewidth": 1.0}
        base = self.base[self.base["quantity"] == part["quantity"].iloc[0]] if len(self.base) else self.base
        if len(base) and figure.baseline not in set(part["variant"]):
            in_row = base[base[figure.row] == part[figure.row].iloc[0]] if figure.row in self.by else base
            mean = in_row[in_row["done"]].groupby(figure.x)["value"].mean()
            axes.plot(mean.index, mean, label=label(figure.baseline), linestyle=DASHED, **look)
        for value, of_line in self._expected_of(part):
            mean = of_line.groupby(figure.x)["value"].mean()
            color = self.every_look[value]["color"] if value in self.every_look else "black"
            axes.plot(mean.index, mean, linewidth=1, color=color, zorder=1)
        if figure.zero:
            axes.axhline(0, zorder=1, **look)
        if figure.x_mark:
            axes.axvline(float(self.rows.filled(figure.x_mark)), linestyle=DOTTED, **look)
        if figure.y_mark != "":
            axes.axhline(float(self.rows.filled(figure.y_mark)), linestyle=DASHED, **look)
        for number, (place, line) in enumerate(self._marks_of(part)):
            color = self.every_look[line]["color"]
            axes.axvline(place, linestyle=DOTTED, linewidth=1.2, color=color)
            beside: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            axes.annotate(f"{place:,.0f}", (place, 0.02 + 0.06 * number), (3, 0), color=color, fontsize=8, **beside)

    def _marks_of(self, part: pd.DataFrame) -> list[tuple[float, str]]:
        """Places of the vertical lines of a panel, and the lines that they belong to."""
        if not self.figure.x_marks:
            return []
        found = self.rows.of(self.quantities[self.figure.x_marks])
        for each in (each for each in self.by if each in found):
            found = found[found[each] == part[each].iloc[0]]
        return list(found[["value", self.figure.line]].itertuples(index=False)) if len(found) else []

    def _expected_of(self, part: pd.DataFrame) -> list[tuple[Any, pd.DataFrame]]:
        """By line the rows of what is expected in a panel."""
        if self.expected.empty:
            return []
        mine = self.expected
        for each in (each for each in self.by if each in mine):
            mine = mine[mine[each] == part[each].iloc[0]]
        return list(mine.groupby(self.figure.line, sort=False)) if self.figure.line in mine else [("", mine)]

    def _line(
        self, axes: Axes, rows: pd.DataFrame, value: Any, look: dict[str, Any], aside: float, quantity: Quantity
    ) -> None:
        """Thin lines, bands or bars, then the mean of the finished runs; a cross where another one ends."""
        figure, color = self.figure, look["color"]
        whole, places = rows[rows["done"]], None
        found = summary(whole, [figure.x], quantity).set_index(figure.x).sort_index()
        if "seed" in whole:  # a mean of other seeds from step to step would jump
            wide = whole.pivot_table(index=figure.x, columns="seed", values="value").dropna()
            found = found.loc[found.index.isin(wide.index)] if figure.spread in BESIDE_MEANS else found
            if figure.spread == "seeds" and wide.shape[1] > 1:
                axes.plot(wide.index, wide, color=color, linewidth=THIN)
            if figure.spread == "range":
                axes.fill_between(wide.index, wide.min(axis=1), wide.max(axis=1), color=color, alpha=0.15, lw=0)
        if figure.spread == "band":
            axes.fill_between(found.index, found["low"], found["high"], color=color, alpha=0.2, lw=0)
        if figure.spread in ("interval", "marks"):  # side by side, so that no interval covers another
            places = self._aside(found.index, aside)
            reach = np.nan_to_num([found["mean"] - found["low"], found["high"] - found["mean"]])
            axes.errorbar(places, found["mean"], yerr=reach, color=color, capsize=2.5, linewidth=1, linestyle="none")
        style: dict[str, Any] = {"linewidth": THICK, "markersize": 5} | look
        if figure.spread == "marks":
            style["linestyle"] = "none"
        else:
            style["markevery"] = max(1, len(found) // MARKS)
        for _, run in rows[~rows["done"]].groupby("seed") if not rows["done"].all() else ():
            curve = run.set_index(figure.x)["value"].sort_index()
            axes.plot(curve.index, curve, color=color, linewidth=THIN)
            cross_at_end(axes, curve, color)
            if whole.empty:  # its name stands where the last of its runs ends
                places, found = curve.index[-1:], curve[-1:].to_frame("mean")
        last = f"  {found['mean'].iloc[-1]:{quantity.format}}" if figure.names == "values" else ""
        places = found.index if places is None else places
        axes.plot(places, found["mean"], label=self.text(value) + last, **style)

    def _aside(self, x: "pd.Index[Any]", steps: float) -> Any:
        """Places on the axis, moved by so many steps."""
        to_axis, back = ON_AXIS[self.figure.x_scale]
        low, high = (to_axis(np.float64(end)) for end in self.span)
        return back(to_axis(x.to_numpy(float)) + STEP * steps * (high - low))

    def _vertical(self, picture: Picture) -> str:
        """The range that the later part of the lines needs, if the beginning is steep; and what is said of it."""
        if not self.figure.y_from:
            return ""
        whole = self.table[self.table["done"]] if self.table["done"].any() else self.table
        late = whole[whole[self.figure.x] >= self.figure.y_from * whole[self.figure.x].max()]["value"]
        low, high = float(late.min()), float(late.max())
        room = 0.05 * (high - low)
        if room <= 1e-9 * abs(high):  # they are equal, but for rounding
            room = max(0.1, 1e-6 * abs(high))
        for axes in picture.axes:
            axes.set_ylim(low - room, high + room)
        cut = self.table["value"].max() > high + room
        return f"\nThe vertical axis is cut at {high + room:.2f}: the beginning lies above it." if cut else ""

    def _floors(self, picture: Picture) -> tuple[list[Floor], str]:
        """The floors that are near enough to be shown, for which the range is widened; and a note on the others."""
        quantity = self.quantities[next(iter(self.found))]
        is_plain = quantity.source == "runs" and not (quantity.minus or quantity.pairs or self.figure.beneath)
        if not is_plain or "split" not in quantity.where:
            return [], ""
        split, metric = (self.rows.filled(quantity.where[name]) for name in ("split", "metric"))
        values = self.table["value"]
        low, high = picture.axes[0].get_ylim() if self.figure.y_from else (values.min(), values.max())
        floors = shown_floors(self.rows.comparison, metric, split, (low, high))
        room = 0.05 * (high - low)
        for axes in picture.axes if floors else []:
            axes.set_ylim(min(low, floors[0].value) - room, max(high, floors[0].value) + room)
        return floors, beyond_the_axis(self.rows.comparison, metric, split, floors)

    def _horizontal(self, every: Sequence[Axes]) -> None:
        """The scale, with ticks and their name where no panel stands beneath."""
        figure, values = self.figure, sorted(self.table[self.figure.x].unique())
        lines = self.rows.filled(figure.x_label or figure.x).split("\n")
        text = "\n".join(fill(line, int(LETTERS * figure.size[0])) for line in lines)
        columns = columns_of(every[0])
        for place, axes in enumerate(every):
            axes.set_xscale(figure.x_scale, **({"linthresh": 1} if figure.x_scale == "symlog" else {}))
            if figure.x_ticks:
                show = amount if figure.x_ticks == "engineering" else "{:,.10g}".format
                axes.set_xticks(values, [show(value) for value in values])
                axes.minorticks_off()
            elif figure.x_scale != "linear":
                ticks = [tick for tick in (0, 1, 10, 100, 1000, 10_000) if values[0] <= tick <= values[-1]]
                axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
                axes.minorticks_off()
            else:
                axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
            axes.tick_params(labelbottom=place + columns >= len(every))
            axes.set_xlabel(text if place + columns >= len(every) else "")

    def _absent(self) -> str:
        """Which variants have failed before they left anything to draw."""
        if self.figure.line != "variant":
            return ""
        left = [f"{name} ({why})" for name, why in self.rows.failures.items() if name not in set(self.table["variant"])]
        return f"\nNot shown: {', '.join(left)}." if left else ""


KEPT = ("variant", "seed", "quantity", "done")
"""columns that ranges along an axis keep"""
BESIDE_MEANS = ("seeds", "range", "band")
"""what is of all finished seeds at each place"""


class Dots(Drawing):
    """A row for each variant: its seeds, mean and interval; a panel for each quantity."""

    def picture(self) -> Picture:
        order = self._order()
        height = 1.3 + 0.31 * (float(order["height"].max()) + 1)
        picture, (panels,) = grid_of(1, len(self.found), (self.figure.size[0], height), (1.8, 0), 6.5, sharey=True)
        for axes, (name, part) in zip(panels, self.found.items(), strict=True):
            self._panel(axes, part, self.quantities[name], order)
        picture.axes[0].set_yticks(order["height"], [self.text(name) for name in order.index])
        picture.axes[0].set_ylim(order["height"].max() + 0.6, -0.6)
        return self.finish(picture)

    def _order(self) -> pd.DataFrame:
        """The height of each row, from the top: as given or by the first quantity, a gap between groups."""
        figure, (name, first) = self.figure, next(iter(self.found.items()))
        by = list(dict.fromkeys(filter(None, [figure.group, figure.line])))
        means = summary(first, by, self.quantities[name])
        if figure.line == "variant":  # also those without a finished run
            facts = self.rows.facts[list(dict.fromkeys([*by, "variant", "place"]))]
            means = facts.merge(means, how="left", on=by).sort_values("place")
        if figure.order == "value":
            means = means.sort_values("mean")
        if figure.group:
            means = pd.concat(part for _, part in means.groupby(figure.group, sort=False))
            gaps = 0.6 * (means[figure.group].ne(means[figure.group].shift()).cumsum() - 1)
        else:
            gaps = pd.Series(0.0, means.index)
        return pd.DataFrame({"height": np.arange(len(means)) + gaps.to_numpy()}, index=means[figure.line])

    def _panel(self, axes: Axes, part: pd.DataFrame, quantity: Quantity, order: pd.DataFrame) -> None:
        figure, looks = self.figure, self.looks(part)
        means = summary(part, [figure.line], quantity).set_index(figure.line)
        line: dict[str, Any] = {"color": MUTED, "linewidth": 1, "zorder": 1}
        if figure.zero and (part["value"] < 0).any():
            axes.axvline(0, **line)
        if figure.baseline in means.index:
            base: Any = means.loc[figure.baseline, "mean"]
            axes.axvline(base, linestyle=DASHED, **line)
        if figure.x_mark:
            axes.axvline(float(self.rows.filled(figure.x_mark)), linestyle=DOTTED, **line)
        for value, height in order["height"].items():
            if value not in means.index and quantity.source != "values":
                continue
            if value not in means.index:
                place: Any = {"transform": axes.get_yaxis_transform(), "va": "center", "color": MUTED, "fontsize": 8.5}
                axes.text(0.03, height, self._why_empty(str(value)), **place)
                continue
            mine, look = part[part[figure.line] == value]["value"], looks[value]
            if figure.spread == "seeds" and len(mine) > 1:
                mine = mine.dropna()
                heights = height + 0.22 + 0.08 * mine.groupby(mine).cumcount()
                axes.plot(mine, heights, ".", color=look["color"], markersize=4)
            mean_with_interval(axes, height, means.loc[str(value)], look["marker"], 6, look["color"])
        axes.set_xlabel(fill(self.rows.filled(quantity.label), int(LETTERS * figure.size[0])))
        number_axis(axes.xaxis, quantity)
        axes.xaxis.set_major_locator(MaxNLocator(10 if len(self.found) == 1 else 5, steps=[1, 2, 5, 10]))
        axes.margins(x=0.08)
        axes.tick_params(axis="y", length=0)
        if quantity.least is not None:
            axes.set_xlim(left=quantity.least)
        if figure.beside:
            self._beside(axes, part, looks, order["height"], quantity)

    def _why_empty(self, value: str) -> str:
        """What stands in a row without values."""
        variant = self.rows.variants.get(value)
        if variant is None:
            return "not measured"
        if not self.rows.finished.get(value):
            return "no finished seed"
        return "baseline" if self.rows.comparison.baseline_of(variant) == value else "nothing to compare"

    def _beside(
        self, axes: Axes, part: pd.DataFrame, looks: dict[Any, Any], heights: "pd.Series[float]", quantity: Quantity
    ) -> None:
        """A column at the right; and arrows of seeds that never reached what the axis shows."""
        place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "fontsize": 9, "color": INK}
        is_count = self.figure.beside == "reached"
        axes.text(1.02, -0.85, "seeds that\nreached it" if is_count else "mean", va="bottom", **place)
        for value, values in part.groupby(self.figure.line)["value"]:
            height, reached = heights[value], values.dropna()
            text = f"{len(reached)} of {len(values)}" if is_count else format(values.mean(), quantity.format)
            axes.text(1.02, height, text, va="center", **place)
            if len(reached) < len(values) and self.figure.x_mark:
                look: dict[str, Any] = {"color": looks[value]["color"], "markerfacecolor": "white", "markersize": 6}
                axes.plot([float(self.rows.filled(self.figure.x_mark))], [height], ">", **look)


def _titled(column: str, value: Any) -> str:
    """A value as a panel's title has it: a number behind the name of its column."""
    name = CALLED.get(column, column.replace("_", " "))
    return f"{name} {value:g}" if isinstance(value, int | float | np.number) else str(value)


def columns_of(axes: Axes) -> int:
    """How many panels stand side by side."""
    place: Any = axes.get_subplotspec()
    return int(place.get_gridspec().ncols)


def number_axis(axis: Axis, quantity: Quantity) -> None:
    """A share in percent is one at its axis, too."""
    if quantity.format.endswith("%"):
        axis.set_major_formatter(PercentFormatter(1))
    elif quantity.format.startswith(","):
        axis.set_major_formatter(StrMethodFormatter(f"{{x:{quantity.format}}}"))


def cross_at_end(axes: Axes, curve: "pd.Series[float]", color: str) -> None:
    """Where a run ended that did not finish; at the panel's edge if that is outside."""
    low, high = axes.get_ylim() if not axes.get_autoscaley_on() else (-np.inf, np.inf)
    height = min(max(float(curve.iloc[-1]), low), high)
    look: dict[str, Any] = {"color": color, "markersize": 9, "markeredgecolor": "white", "zorder": 4}
    axes.plot([curve.index[-1]], [height], "X", clip_on=False, **look)


def name_ends(picture: Picture, floors: Sequence[Floor] = ()) -> None:
    """Each line's name at the right of its panel, in its colour, moved apart where names would touch."""
    for axes in picture.axes:
        mark_floors(axes, floors, named=False)
    picture.set_dpi(DOTS_PER_INCH)
    for axes in picture.axes:
        _annotate(axes, floors)
    picture.draw_without_rendering()  # finds the panels' places, with room for the names
    picture.set_layout_engine("none")
    for axes in picture.axes:
        _part(axes)


def _annotate(axes: Axes, floors: Sequence[Floor]) -> None:
    place: dict[str, Any] = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
    place |= {"annotation_clip": False, "va": "center"}
    for line in axes.get_lines():
        text, heights = str(line.get_label()), np.asarray(line.get_ydata(), float)
        if text.startswith("_"):
            continue
        low, high = sorted(axes.get_ylim())
        end = min(max(heights[-1], low), high) if len(heights) else high
        axes.annotate(text, (1, end), (4, 0), color=line.get_color(), fontsize=8.5, **place)
    for floor in floors:
        axes.annotate(floor.name, (1, floor.value), (4, 0), color=MUTED, fontsize=7, **place)


def _part(axes: Axes) -> None:
    """Move names apart: each as near to its line as those below allow, and all within the panel if they fit."""
    picture: Any = axes.figure
    texts: list[Any] = sorted(axes.texts, key=lambda text: float(text.xy[1]) if hasattr(text, "xy") else 0)
    texts = [text for text in texts if hasattr(text, "xy")]
    if not texts:
        return
    wanted = axes.get_yaxis_transform().transform([text.xy for text in texts])[:, 1] * 72 / picture.dpi
    room = np.array([LINE * (text.get_text().count("\n") + 1) for text in texts])
    heights, free = wanted.copy(), -np.inf
    for place in range(len(texts)):
        heights[place] = max(wanted[place], free + room[place] / 2)
        free = heights[place] + room[place] / 2
    top = axes.bbox.y1 * 72 / picture.dpi + LINE
    for place in reversed(range(len(texts))):
        heights[place] = min(heights[place], top - room[place] / 2)
        top = heights[place] - room[place] / 2
    for text, height, was in zip(texts, heights, wanted, strict=True):
        text.set_position((4, height - was))


def grid_of(
    rows: int,
    columns: int,
    size: tuple[float, float],
    margin: tuple[float, float] = (0, 0),
    least: float = 0,
    sharex: Any = False,
    sharey: Any = False,
) -> tuple[Picture, Any]:
    """A figure, ``least`` inches wide or wider, and its array (rows, columns) of panels of about ``size`` each."""
    width, height = (each * number + more for each, number, more in zip(size, (columns, rows), margin, strict=True))
    figure = Picture(figsize=(max(width, least), height))
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)


def head(figure: Picture, comparison: Comparison, note: str) -> None:
    """Say above all panels what the data are, and ``note``."""
    names = label(", ".join(data.called for data in comparison.data), longest=60)
    lines = [fill(line, int(figure.get_figwidth() / LETTER)) for line in f"{names}, {note}".split("\n")]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9, color=MUTED)


def legend_below(figure: Picture, panels: Iterable[Axes], columns: int, **options: Any) -> None:
    """One legend below all panels, of everything that any of them labels; none if nothing has a label."""
    found = {text: handle for axes in panels for text, handle in _labelled(axes).items()}
    if not found:
        return
    ncols = min(columns, len(found))
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=ncols, **options)


def _labelled(axes: Axes) -> dict[str, Any]:
    handles, texts = axes.get_legend_handles_labels()
    return dict(zip(texts, handles, strict=True))


def mean_with_interval(axes: Axes, height: float, row: Any, marker: str, size: float, colour: str) -> None:
    """A mark at a row's mean, with its interval, if it has one, as a horizontal line."""
    if pd.notna(row["low"]):
        reach = [[row["mean"] - row["low"]], [row["high"] - row["mean"]]]
        axes.errorbar(row["mean"], height, xerr=reach, color=colour, capsize=3.5, linewidth=1.5)
    axes.plot([row["mean"]], [height], marker, color=colour, markersize=size)


def end_below_the_lowest(column: Sequence[Axes]) -> None:
    """End a logarithmic axis below what is drawn: an interval down to zero would stretch it without end."""
    drawn = np.concatenate([line.get_ydata() for axes in column for line in axes.get_lines()]).astype(float)
    column[0].set_ylim(bottom=drawn[drawn > 0].min() / 2)


def shown_floors(comparison: Comparison, metric: str, split: str, vertical_range: tuple[float, float]) -> list[Floor]:
    """The best floor that does not make the range of the curves more than twice as high; and the trigram in it."""
    low, high = vertical_range
    height = high - low
    equal = [each for each in comparison.floors_of(metric, split) if each.equal]
    *_, best = [None, *(each for each in equal if low - height < each.value < high + height)]
    if best is None:
        return []
    trigrams = (each for each in equal if each.name == "trigram" and low < each.value < high)
    return [best, *(each for each in trigrams if abs(each.value - best.value) > height / 15)]


def beyond_the_axis(comparison: Comparison, metric: str, split: str, floors: Sequence[Floor]) -> str:
    """A line of a note on the best floor, if it is not among those that are shown."""
    best = comparison.best_floor(metric, split)
    return "" if best is None or best in floors else f"\nBeyond the vertical axis: {best.name}, {best.value:.2f}."


def mark_floors(axes: Axes, floors: Sequence[Floor], named: bool = True) -> None:
    """A thin horizontal line for each floor, its name at the right end."""
    for floor in floors:
        axes.axhline(floor.value, color=MUTED, linewidth=0.7, zorder=1)
        if not named:
            continue
        place: Any = {"xy": (1, floor.value), "xycoords": ("axes fraction", "data"), "va": "center"}
        axes.annotate(floor.name, **place, xytext=(2, 0), textcoords="offset points", fontsize=7, color=MUTED)
