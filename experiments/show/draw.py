"""Figures from their keys, in the suite's look: lines (lines.py), dots, or what a function draws."""

import pkgutil
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import MaxNLocator

from experiments.show.axes import grid_of, number_axis
from experiments.show.drawing import DASHED, DOTTED, Drawing
from experiments.show.keys import Figure, Quantity
from experiments.show.lines import Lines
from experiments.show.rows import Rows, summary
from experiments.show.style import MUTED


def draw(figure: Figure, quantities: dict[str, Quantity], rows: Rows) -> Picture | None:
    """The picture; None if there is nothing to show."""
    if ":" in figure.kind:
        made: Picture | None = pkgutil.resolve_name(figure.kind)(rows)
        return made
    found = {name: rows.of(quantities[name]) for name in figure.quantities}
    if figure.only:
        wanted = pkgutil.resolve_name(figure.only)(rows)
        found = {name: part[part["variant"].isin(wanted)] for name, part in found.items()}
    found = {name: part for name, part in found.items() if len(part)}
    if not found:
        return None
    return (Lines if figure.kind == "lines" else Dots)(figure, quantities, found, rows).picture()


class Dots(Drawing):
    """A row for each variant: its seeds, mean and interval; a panel for each quantity."""

    def picture(self) -> Picture:
        order = self._order()
        height = 1.3 + 0.31 * (float(order["height"].max()) + 1)
        shape, size = (1, len(self.found)), (self.figure.size[0], height)
        picture, (panels,) = grid_of(shape, size, (1.8, 0), 6.5, sharey=True)
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
            facts = facts[facts["variant"] != self.quantities[name].minus]
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
        means: Any = summary(part, [figure.line], quantity).set_index(figure.line)
        line: dict[str, Any] = {"color": MUTED, "linewidth": 1, "zorder": 1}
        if figure.zero and (part["value"] < 0).any():
            axes.axvline(0, **line)
        if figure.baseline in means.index:
            axes.axvline(means.loc[figure.baseline, "mean"], linestyle=DASHED, **line)
        if figure.x_mark:
            axes.axvline(float(self.rows.filled(figure.x_mark)), linestyle=DOTTED, **line)
        if figure.beneath:
            expected = self.quantities[figure.beneath]
            for end in self.rows.of(expected)["value"][-1:]:
                axes.axvline(end, color="black", linewidth=0.7, zorder=1)
                above: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "va": "bottom", "fontsize": 7}
                axes.text(end, 1.01, self.rows.filled(expected.label), ha="center", color=MUTED, **above)
        for value, height in order["height"].items():
            if value not in means.index:
                place: Any = {"transform": axes.get_yaxis_transform(), "va": "center", "color": MUTED, "fontsize": 8.5}
                if quantity.source == "values":
                    axes.text(0.03, height, self._why_empty(str(value)), **place)
                continue
            mine, look = part[part[figure.line] == value]["value"].dropna(), looks[value]
            if figure.spread == "seeds" and len(mine) > 1:
                heights = height + 0.22 + 0.08 * mine.groupby(mine).cumcount()
                axes.plot(mine, heights, ".", color=look["color"], markersize=4)
            mean, low, high = means.loc[value, ["mean", "low", "high"]]
            if pd.notna(low):
                reach = [[mean - low], [high - mean]]
                axes.errorbar(mean, height, xerr=reach, color=look["color"], capsize=3.5, linewidth=1.5)
            axes.plot([mean], [height], look["marker"], color=look["color"], markersize=6)
        axes.set_xlabel(self.wrapped(quantity.label, figure.size[0]))
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
        place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "fontsize": 9, "color": "#333333"}
        is_count = self.figure.beside == "reached"
        axes.text(1.02, -0.85, "seeds that\nreached it" if is_count else "mean", va="bottom", **place)
        for value, values in part.groupby(self.figure.line)["value"]:
            height, reached = heights[value], values.dropna()
            text = f"{len(reached)} of {len(values)}" if is_count else format(values.mean(), quantity.format)
            axes.text(1.02, height, text, va="center", **place)
            if len(reached) < len(values) and self.figure.x_mark:
                look: dict[str, Any] = {"color": looks[value]["color"], "markerfacecolor": "white", "markersize": 6}
                axes.plot([float(self.rows.filled(self.figure.x_mark))], [height], ">", **look)
