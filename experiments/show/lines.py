"""Figures of lines along an axis, in panels."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from experiments.records.schema import Floor
from experiments.show.axes import LETTER, grid_of, legend_below, mark_floors, name_ends, number_axis, shown_floors
from experiments.show.drawing import BESIDE_MEANS, DASHED, DOTTED, OWN_LOOK, Drawing
from experiments.show.keys import Quantity
from experiments.show.rows import summary
from experiments.show.style import MUTED, label, label_powers_of_ten, legend_label
from experiments.show.words import amount

THIN, THICK, MARKS = 0.6, 1.8, 7
STEP = 0.015
"""share of the axis between two intervals at one place; more than six have the room of six"""
CALLED = {"dim": "width", "num_features": "M ="}
"""columns whose name is not what a title says"""
KEPT = ("variant", "seed", "quantity", "done")
"""columns that ranges along an axis keep"""


class Lines(Drawing):
    """A panel for each value of a column, in it a line for each value of another."""

    def picture(self) -> Picture | None:
        figure = self.figure
        self.table = pd.concat([self._along(part) for part in self.found.values()])
        self.base = self.table[self.table["variant"] == figure.baseline] if figure.baseline else self.table[:0]
        if figure.baseline and figure.baseline not in self.rows.variants:  # as uniform attention: no line of its own
            self.table = self.table[self.table["variant"] != figure.baseline]
        self.expected = self._along(self.rows.of(self.quantities[figure.beneath])) if figure.beneath else self.base[:0]
        if figure.x == "tokens" and self.table[figure.x].nunique() < 2:
            return None  # a single point a line: tables say as much
        self.by = [
            each
            for each in ("quantity", figure.row, figure.panel)
            if each in self.table and (self.table[each].nunique() > 1 or each == figure.panel)
        ]
        self._check()
        self.every_look = self.looks(self.table)
        picture, panels = self._panels()
        floors, notes = self._vertical(picture)
        self._horizontal(picture.axes)
        for axes, part in panels:
            self._panel(axes, part)
            mark_floors(axes, floors)
        if figure.names == "legend":
            legend_below(picture)
        self.finish(picture, notes + self._absent())
        if figure.names != "legend":
            name_ends(picture)
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
        parts = [self.table[(self.table[by] == list(key)).all(axis=1)] if by else self.table for key in keys]
        columns = len(places[-1]) if len(by) > 1 else min(figure.columns, len(parts))
        count = -(-len(parts) // columns)
        columns = columns if len(by) > 1 else -(-len(parts) // count)
        texts = [self.text(value) for value in self.table[figure.line].unique()] if figure.names != "legend" else []
        longest = max((len(line) for text in texts for line in text.split("\n")), default=0)
        size = figure.size[0] + LETTER * longest, figure.size[1]
        share: Any = {"all": True, "row": "row", "column": "col"}[figure.y_share]
        picture, grid = grid_of((count, columns), size, (0.3, 0.5), 4.5, sharex=True, sharey=share)
        for axes in grid.flat[len(parts) :]:
            axes.remove()
        first = next(iter(self.found))
        for axes, part, key in zip(grid.flat, parts, keys, strict=False):
            told = dict(zip(by, key, strict=True))
            title = ", ".join(_titled(each, told[each]) for each in (figure.panel, figure.row) if each in told)
            axes.set_title(legend_label(title) if by else "")
            if len(self.found) > 1 and axes.get_subplotspec().is_first_col():
                quantity = self.quantities[part["quantity"].iloc[0] if len(part) else first]
                axes.set_ylabel(self.wrapped(quantity.label, figure.size[1]))
        if len(self.found) == 1:
            picture.supylabel(self.wrapped(self.quantities[first].label, picture.get_figheight()), fontsize=10)
        return picture, list(zip(grid.flat, parts, strict=False))

    def _vertical(self, picture: Picture) -> tuple[list[Floor], str]:
        """Set the range that the later part of the lines needs, if the beginning is steep, and floors that are near it.

        Returns those floors, and a note on what lies beyond.
        """
        figure, values, notes = self.figure, self.table["value"], ""
        low, high = float(values.min()), float(values.max())
        if figure.y_from:
            whole = self.table[self.table["done"]] if self.table["done"].any() else self.table
            late = whole[whole[figure.x] >= figure.y_from * whole[figure.x].max()]["value"]
            low, high = float(late.min()), float(late.max())
            room = 0.05 * (high - low)
            if room <= 1e-9 * abs(high):  # they are equal, but for rounding
                room = max(0.1, 1e-6 * abs(high))
            low, high = low - room, high + room
            if values.max() > high:
                notes = f"\nThe vertical axis is cut at {high:.2f}: the beginning lies above it."
        floors = list[Floor]()
        quantity = self.quantities[next(iter(self.found))]
        of_differences = quantity.minus or quantity.pairs or figure.beneath
        if "split" in quantity.where and quantity.source == "runs" and not of_differences:
            split, metric = (self.rows.filled(quantity.where[name]) for name in ("split", "metric"))
            comparison, room = self.rows.comparison, 0.05 * (high - low)
            floors, best = shown_floors(comparison, metric, split, (low, high)), comparison.best_floor(metric, split)
            if floors:
                low, high = min(low, floors[0].value) - room, max(high, floors[0].value) + room
            if best is not None and best not in floors:
                notes += f"\nBeyond the vertical axis: {best.name}, {best.value:.2f}."
        for axes in picture.axes if figure.y_from or floors else ():
            axes.set_ylim(low, high)
        return floors, notes

    def _horizontal(self, every: Sequence[Axes]) -> None:
        """The scale, with ticks and their name where no panel stands beneath."""
        figure, values = self.figure, sorted(self.table[self.figure.x].unique())
        picture: Any = every[0].figure
        place: Any = every[0].get_subplotspec()
        columns = place.get_gridspec().ncols
        text = self.wrapped(figure.x_label or figure.x, picture.get_figwidth() / columns)
        for number, axes in enumerate(every):
            axes.set_xscale(figure.x_scale, **({"linthresh": 1} if figure.x_scale == "symlog" else {}))
            if figure.x_ticks == "decades":
                axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))
            elif figure.x_ticks:
                show = amount if figure.x_ticks == "engineering" else "{:,.10g}".format
                axes.set_xticks(values, [show(value) for value in values])
            elif figure.x_scale == "linear":
                axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
            else:
                axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axes.minorticks_off()
            is_last = number + columns >= len(every)
            axes.tick_params(labelbottom=is_last)
            axes.set_xlabel(text if is_last else "")

    def _panel(self, axes: Axes, part: pd.DataFrame) -> None:
        """The lines of a panel: their means, and what is beside them."""
        if part.empty:
            axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=MUTED)
            return
        quantity = self.quantities[part["quantity"].iloc[0]]
        if quantity.scale != "linear":
            axes.set_yscale(quantity.scale, **({"linthresh": quantity.linthresh} if quantity.scale == "symlog" else {}))
        self._beneath(axes, part)
        at = part.groupby(self.figure.x)[self.figure.line].unique().map(list)
        for value in part[self.figure.line].unique():
            self._line(axes, part[part[self.figure.line] == value], at, quantity)
        number_axis(axes.yaxis, quantity)
        if quantity.scale != "linear":
            label_powers_of_ten(axes)
            if quantity.format.startswith(","):
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
                axes.yaxis.set_minor_locator(NullLocator())
        if quantity.least is not None:
            axes.set_ylim(bottom=quantity.least)

    def _in_panel(self, rows: pd.DataFrame, part: pd.DataFrame, but: str = "") -> pd.DataFrame:
        """Of other rows those of the panel that has these; ``but`` one of its columns."""
        for each in self.by:
            if each in rows and each != but:
                rows = rows[rows[each] == part[each].iloc[0]]
        return rows

    def _beneath(self, axes: Axes, part: pd.DataFrame) -> None:
        """What is drawn for comparison: the baseline in grey, what is expected, 0, and marks."""
        figure, rows = self.figure, self.rows
        look: dict[str, Any] = {"color": MUTED, "linewidth": 1.0}
        base = self._in_panel(self.base, part, but=figure.panel)
        if len(base) and figure.baseline not in set(part["variant"]):
            mean = base[base["done"]].groupby(figure.x)["value"].mean()
            axes.plot(mean.index, mean, label=label(figure.baseline), linestyle=DASHED, **look)
        expected = self._in_panel(self.expected, part)
        line = figure.line if figure.line in expected else "quantity"
        named = rows.filled(self.quantities[figure.beneath].label) if len(expected) and line == "quantity" else ""
        for value, of_line in expected.assign(quantity=named).groupby(line, sort=False):
            mean = of_line.groupby(figure.x)["value"].mean()
            color = self.every_look.get(value, {}).get("color", "black")
            axes.plot(mean.index, mean, linewidth=1, color=color, zorder=1, label=named or None)
        if figure.zero:
            axes.axhline(0, zorder=1, **look)
        if figure.x_mark:
            axes.axvline(float(rows.filled(figure.x_mark)), linestyle=DOTTED, **look)
        if figure.y_mark != "":
            axes.axhline(float(rows.filled(figure.y_mark)), linestyle=DASHED, **look)
        marks = self._in_panel(rows.of(self.quantities[figure.x_marks]), part) if figure.x_marks else self.base[:0]
        for number, mark in enumerate(marks.to_dict("records")):
            place, color = mark["value"], self.every_look[mark[figure.line]]["color"]
            axes.axvline(place, linestyle=DOTTED, linewidth=1.2, color=color)
            beside: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            axes.annotate(f"{place:,.0f}", (place, 0.02 + 0.06 * number), (3, 0), color=color, fontsize=8, **beside)

    def _line(self, axes: Axes, rows: pd.DataFrame, at: "pd.Series[Any]", quantity: Quantity) -> None:
        """Thin lines, bands or bars, then the mean of the finished runs; a cross where another one ends.

        ``at`` has the lines of the panel at each place.
        """
        figure, value = self.figure, rows[self.figure.line].iloc[0]
        look = self.looks(rows)[value] if figure.line in OWN_LOOK else self.every_look[value]
        color, whole = look["color"], rows[rows["done"]]
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
        places = found.index
        if figure.spread in ("interval", "marks"):  # side by side, so that no interval covers another
            steps = [(at[x].index(value) - (len(at[x]) - 1) / 2) / max(6, len(at[x])) for x in found.index]
            places = self._aside(axes, found.index, 6 * np.array(steps))
            reach = [found["mean"] - found["low"], found["high"] - found["mean"]]
            axes.errorbar(places, found["mean"], yerr=reach, color=color, capsize=2.5, linewidth=1, linestyle="none")
        for _, run in rows[~rows["done"]].groupby("seed") if not rows["done"].all() else ():
            curve = run.set_index(figure.x)["value"].sort_index()
            axes.plot(curve.index, curve, color=color, linewidth=THIN)
            _cross_at_end(axes, curve, color)
            if whole.empty:  # its name stands where the last of its runs ends
                places, found = curve.index[-1:], curve[-1:].to_frame("mean")
        style: dict[str, Any] = {"linewidth": THICK, "markersize": 5} | look
        style |= {"linestyle": "none"} if figure.spread == "marks" else {"markevery": max(1, len(found) // MARKS)}
        last = f"  {found['mean'].iloc[-1]:{quantity.format}}" if figure.names == "values" else ""
        axes.plot(places, found["mean"], label=self.text(value) + last, **style)

    def _aside(self, axes: Axes, x: "pd.Index[Any]", steps: Any) -> Any:
        """Places on the axis, moved by so many steps."""
        scale, x_of_all = axes.xaxis.get_transform(), self.table[self.figure.x].to_numpy(float)
        low, high = scale.transform([x_of_all.min(), x_of_all.max()])
        return scale.inverted().transform(scale.transform(x.to_numpy(float)) + STEP * steps * (high - low))

    def _absent(self) -> str:
        """Which variants have failed before they left anything to draw."""
        if self.figure.line != "variant" or self.figure.only:
            return ""
        left = [f"{name} ({why})" for name, why in self.rows.failures.items() if name not in set(self.table["variant"])]
        return f"\nNot shown: {', '.join(left)}." if left else ""


def _titled(column: str, value: Any) -> str:
    """A value as a panel's title has it: a number behind the name of its column."""
    name = CALLED.get(column, column.replace("_", " "))
    return f"{name} {value:g}" if isinstance(value, int | float | np.number) else str(value)


def _cross_at_end(axes: Axes, curve: "pd.Series[float]", color: str) -> None:
    """Where a run ended that did not finish; at the panel's edge if that is outside."""
    low, high = axes.get_ylim() if not axes.get_autoscaley_on() else (-np.inf, np.inf)
    height = min(max(float(curve.iloc[-1]), low), high)
    look: dict[str, Any] = {"color": color, "markersize": 9, "markeredgecolor": "white", "zorder": 4}
    axes.plot([curve.index[-1]], [height], "X", clip_on=False, **look)
