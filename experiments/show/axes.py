"""What panels of figures have in common: grids of them, heads, legends and axes, names of lines, and floors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from experiments.records.schema import Comparison, Floor
from experiments.show.keys import Quantity
from experiments.show.style import DOTS_PER_INCH, MUTED

LETTER, LINE = 0.066, 10.5
"""inches of a letter of a name, points of a line of it"""


def grid_of(
    shape: tuple[int, int], size: tuple[float, float], margin: tuple[float, float], least: float, **shared: Any
) -> tuple[Picture, Any]:
    """A figure, ``least`` inches wide or wider, and its array (rows, columns) of panels of about ``size`` each."""
    width, height = (each * number + more for each, number, more in zip(size, shape[::-1], margin, strict=True))
    figure = Picture(figsize=(max(width, least), height))
    return figure, figure.subplots(*shape, squeeze=False, **shared)


def legend_below(figure: Picture) -> None:
    """One legend below all panels, of everything that any of them labels; none if nothing has a label."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        handles, texts = axes.get_legend_handles_labels()
        found |= zip(texts, handles, strict=True)
    if found:
        longest = max(len(line) for text in found for line in text.split("\n"))
        columns = max(1, int(figure.get_figwidth() / (LETTER * longest + 0.8)))  # a handle takes 0.8 inches
        shape: Any = {"loc": "outside lower center", "ncols": min(columns, 3, len(found)), "handlelength": 3.5}
        figure.legend(list(found.values()), list(found), **shape)


def number_axis(axis: Axis, quantity: Quantity) -> None:
    """A share in percent is one at its axis, too."""
    if quantity.format.endswith("%"):
        axis.set_major_formatter(PercentFormatter(1))
    elif quantity.format.startswith(","):
        axis.set_major_formatter(StrMethodFormatter(f"{{x:{quantity.format}}}"))


def name_ends(picture: Picture) -> None:
    """Each line's name at the right of its panel, in its colour; names, also of floors, are moved apart."""
    picture.set_dpi(DOTS_PER_INCH)
    for axes in picture.axes:
        low, high = sorted(axes.get_ylim())
        for line in axes.get_lines():
            text, heights = str(line.get_label()), np.asarray(line.get_ydata(), float)
            if not text.startswith("_"):
                end = min(max(heights[-1], low), high) if len(heights) else high
                _name_at(axes, text, end, color=line.get_color(), fontsize=8.5)
    picture.draw_without_rendering()  # finds the panels' places, with room for the names
    picture.set_layout_engine("none")
    for axes in picture.axes:
        _part(axes)


def _name_at(axes: Axes, text: str, height: float, **look: Any) -> None:
    place: dict[str, Any] = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
    axes.annotate(text, (1, height), (4, 0), annotation_clip=False, va="center", **place, **look)


def _part(axes: Axes) -> None:
    """Move names apart: each as near to its line as those below allow, and all within the panel if they fit."""
    picture: Any = axes.figure
    texts: list[Any] = [text for text in axes.texts if hasattr(text, "xy")]
    if not texts:
        return
    texts.sort(key=lambda text: float(text.xy[1]))
    wanted = axes.get_yaxis_transform().transform([text.xy for text in texts])[:, 1] * 72 / picture.dpi
    room = np.array([LINE * (text.get_text().count("\n") + 1) for text in texts])
    heights, free = wanted.copy(), -np.inf
    for place in range(len(texts)):
        heights[place] = max(wanted[place], free + room[place] / 2)
        free = heights[place] + room[place] / 2
    top = min(axes.bbox.y1 * 72 / picture.dpi + LINE, 72 * picture.get_figheight())
    for place in reversed(range(len(texts))):
        heights[place] = min(heights[place], top - room[place] / 2)
        top = heights[place] - room[place] / 2
    for text, height, was in zip(texts, heights, wanted, strict=True):
        text.set_position((4, height - was))


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


def mark_floors(axes: Axes, floors: Sequence[Floor]) -> None:
    """A thin horizontal line for each floor, its name at the right end."""
    for floor in floors:
        axes.axhline(floor.value, color=MUTED, linewidth=0.7, zorder=1)
        _name_at(axes, floor.name, floor.value, color=MUTED, fontsize=7)
