"""The figures of the speed experiment."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from experiments.figures.style import MUTED, OTHER_COLOUR, OTHER_POSITION, kernel_style, label
from experiments.studies.speed.results import Crossing
from experiments.studies.speed.settings import (
    AFTER,
    BACKWARD,
    BEFORE,
    ELU,
    EQ_19,
    FAST_TRANSFORMERS,
    FLA,
    FORWARD,
    NONE,
    OURS,
    PERFORMER,
    SDPA,
    SOFTMAX,
    TOKEN,
)

OTHERS: dict[str, dict[str, Any]] = {
    FAST_TRANSFORMERS: {"color": "#CC79A7", "linestyle": "-", "marker": "D"},
    FLA: {"color": "#0072B2", "linestyle": "-", "marker": "s"},
}
VARIANTS = {
    OURS: ("favor+", "none"),
    EQ_19: ("favor+", "rope-after"),
    NONE: ("favor+", "none"),
    BEFORE: ("favor+", "rope-before"),
    AFTER: ("favor+", "rope-after"),
    ELU: ("elu+1", "rope-after"),
    SDPA: ("softmax", "none"),
    SOFTMAX: ("softmax", "rope-before"),
    PERFORMER: ("performer-pytorch", "none"),
}
LENGTH = "length N (tokens, logarithmic axis)"


def time_figure(times: pd.DataFrame, crossings: Sequence[Crossing] = (), what: str = "one call") -> Figure:
    """Time against length, a panel per direction; ``times`` are the rows of one topic."""
    directions = list(dict.fromkeys(times["direction"]))
    figure = Figure(figsize=(7.5 if len(directions) == 1 else 10, 5), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(directions), sharey=True))
    for axes, direction in zip(panels, directions, strict=True):
        _curves(axes, times[times["direction"] == direction], "median", band=True)
        if len(directions) > 1:
            axes.set_title(direction)
    _mark_crossings(dict(zip(directions, panels, strict=True)), crossings)
    panels[0].set_ylabel(f"time of {what} (ms, logarithmic axis)")
    _legend(figure, panels[0])
    return figure


def memory_figure(memory: pd.DataFrame, column: str = "extra", crossings: Sequence[Crossing] = ()) -> Figure:
    """Peak memory against length."""
    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    axes = figure.subplots()
    _curves(axes, memory, column, scale=2**-20)
    _mark_crossings({"": axes}, crossings)
    words = {"extra": "extra memory", "rise": "memory"}[column]
    axes.set_ylabel(f"{words} at its peak (MiB, logarithmic axis)")
    _legend(figure, axes)
    return figure


def rate_figure(rate: pd.DataFrame, target: float) -> Figure:
    """Share of the matrix-product rate, and the cost of a token, against length."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    looks = {FORWARD: (0, (5, 2)), BACKWARD: "-"}
    for direction, rows in rate.groupby("direction", sort=False):
        style: dict[str, Any] = {"color": "#D55E00", "linestyle": looks[str(direction)]}
        left.plot(rows["length"], rows["causal_share"], marker="v", label=direction, **style)
        left.fill_between(rows["length"], rows["causal_low"], rows["causal_high"], color="#D55E00", alpha=0.15, lw=0)
        dense = style | {"color": MUTED, "linewidth": 1}
        left.plot(rows["length"], rows["dense_share"], label=f"{direction}, counting whole chunks", **dense)
        right.plot(rows["length"], rows["cost"], marker="v", label=direction, **style)
    left.axhline(target, color="black", linewidth=0.8, label=f"target, {target:.0%}")
    left.set(ylim=(0, max(1.1 * target, left.get_ylim()[1])), ylabel="share of the sgemm rate")
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    right.set(ylim=(0, None), ylabel="time of a token / mean over the lengths")
    for axes in (left, right):
        _length_axis(axes, rate["length"])
    _legend(figure, left, columns=3)
    return figure


def decoding_figure(
    times: pd.DataFrame, state: pd.DataFrame, faster: Sequence[Crossing] = (), smaller: Sequence[Crossing] = ()
) -> Figure:
    """Time of a token and size of the state against the context."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _curves(left, times, "median", band=True)
    left.set_ylabel("time of one token (ms, logarithmic axis)")
    _mark_crossings({TOKEN: left}, faster)
    _curves(right, state, "value", scale=2**-20)
    _mark_crossings({"": right}, smaller)
    right.set_ylabel("state of one sequence (MiB, logarithmic axis)")
    for axes in (left, right):
        axes.set_xlabel("context (tokens, logarithmic axis)")
    _legend(figure, left)
    return figure


def positions_figure(times: pd.DataFrame) -> Figure:
    """What each position encoding adds to a step, in percent: a panel per kernel, a row per encoding and length."""
    parts = times["case"].str.partition(" ")
    rows = times.assign(kernel=parts[0], encoding=parts[2])
    rows = rows[(rows["encoding"] != "none") & rows["ratio"].notna()]
    kernels = list(dict.fromkeys(times["case"].str.partition(" ")[0]))
    figure = Figure(
        figsize=(3.3 * len(kernels) + 1, 0.7 + 0.5 * max(4, len(rows) / len(kernels))), layout="constrained"
    )
    panels = np.atleast_1d(figure.subplots(1, len(kernels), sharex=True))
    several = times["length"].nunique() > 1
    for axes, kernel in zip(panels, kernels, strict=True):
        mine = rows[rows["kernel"] == kernel]
        names = [
            f"{encoding}, N = {length:,}" if several else encoding
            for encoding, length in zip(mine["encoding"], mine["length"], strict=True)
        ]
        median, low, high = (100 * (mine[name] - 1) for name in ("ratio", "ratio_low", "ratio_high"))
        style = {"color": kernel_style(kernel, "none")["color"], "capsize": 3}
        axes.errorbar(median, range(len(mine)), xerr=(median - low, high - median), fmt="o", **style)
        axes.axvline(0, color=MUTED, linewidth=0.8)
        axes.set_yticks(range(len(mine)), [label(name) for name in names])
        axes.set_ylim(len(mine) - 0.5, -0.5)
        axes.set_title(label(kernel))
        axes.set_xlabel("added to a step (%)")
    return figure


def look(name: str) -> dict[str, Any]:
    """Keyword arguments of ``Axes.plot`` for a competitor."""
    kind = name.partition(", M=")[0]
    if kind in OTHERS:
        return OTHERS[kind]
    if kind not in VARIANTS:  # of another version
        return {"color": OTHER_COLOUR} | OTHER_POSITION
    kernel, position = VARIANTS[kind]
    return kernel_style(kernel, position)


def _curves(axes: Axes, rows: pd.DataFrame, column: str, *, band: bool = False, scale: float = 1e3) -> None:
    for index, (name, group) in enumerate(rows.groupby("case", sort=False)):
        group = group.sort_values("length")
        style = look(str(name))
        if "M=" in str(name) and index:  # a second M of the same module
            style = style | {"linestyle": (0, (6, 2, 1, 2)), "marker": "s"}
        axes.plot(group["length"], group[column] * scale, label=label(str(name)), markersize=5, **style)
        if band:
            low, high = group["low"] * scale, group["high"] * scale
            axes.fill_between(group["length"], low, high, color=style["color"], alpha=0.15, linewidth=0)
    if not (rows[column] > 0).any():  # nothing that a logarithm has a place for
        return
    axes.set_yscale("log")
    bottom, top = axes.get_ylim()
    if top < 300 * bottom:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    _length_axis(axes, rows["length"])


def _length_axis(axes: Axes, lengths: "pd.Series[int]") -> None:
    ticks = sorted(set(lengths))
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=30 if len(ticks) > 4 else 0)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(LENGTH)


def _mark_crossings(panels: dict[str, Axes], crossings: Sequence[Crossing]) -> None:
    """A dotted line where ours becomes less, with its N in a strip of its own below the curves of all panels."""
    if not crossings:
        return
    pairs = list(dict.fromkeys((crossing.ours, crossing.other) for crossing in crossings))
    first = next(iter(panels.values()))
    bottom, top = first.get_ylim()
    strip = 0.11 * len(pairs)
    first.set_ylim(bottom * (bottom / top) ** (strip / (1 - strip)), top)
    for direction, ours, other, where in crossings:
        axes = panels[direction]
        axes.axvline(where, color=MUTED, linestyle=":", linewidth=1)
        left, right = axes.get_xlim()
        is_left = where**2 < left * right
        axes.annotate(
            f"{ours}\nbelow {other} from N = {where:,.0f}",
            (where, 0.02 + 0.1 * pairs.index((ours, other))),
            xycoords=("data", "axes fraction"),
            xytext=(4 if is_left else -4, 0),
            textcoords="offset points",
            horizontalalignment="left" if is_left else "right",
            fontsize=7.5,
            color=MUTED,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85},
        )


def _legend(figure: Figure, axes: Axes, columns: int = 4) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(columns if figure.get_figwidth() > 8 else 3, len(labels)),
        frameon=False,
    )
