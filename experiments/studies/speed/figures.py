"""The figures and tables of the speed study, from its record alone."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter, StrMethodFormatter

from experiments.figures import style
from experiments.figures.panels import grid_of, legend_below
from experiments.figures.style import MUTED, label
from experiments.records.files import write_atomically
from experiments.records.schema import Comparison
from experiments.studies.speed import results as cells
from experiments.studies.speed import study
from experiments.studies.speed.records import read_config, read_records
from experiments.studies.speed.results import MIB, Crossing, Results, size_crossings
from experiments.studies.speed.study import (
    AFTER,
    BUSY,
    DECODING,
    EQ_19,
    FORWARD,
    OURS,
    SDPA,
    SOFTMAX,
    STUDY,
    TOKEN,
    after,
)
from experiments.studies.speed.targets import SETTING, SHARE_TARGET, Target, targets
from experiments.study import FigureEntry, TableEntry

LOOKS: dict[str, dict[str, Any]] = {
    study.FAST_TRANSFORMERS: {"color": "#b8458b", "linestyle": "-", "marker": "D"},
    study.FLA: {"color": "#0072B2", "linestyle": "-", "marker": "s"},
    OURS: style.kernel_style("favor+", "none"),
    EQ_19: style.kernel_style("favor+", "rope-after"),
    SDPA: style.kernel_style("softmax", "none"),
    study.PERFORMER: style.kernel_style("performer-pytorch", "none"),
    **{
        name: style.kernel_style(study.variant(name).kernel, study.variant(name).position)
        for name in (study.NONE, study.BEFORE, AFTER, study.ELU, SOFTMAX)
    },
}
"""of the competitors; one of another version is drawn as an unknown kernel"""
SECOND = {"linestyle": (0, (6, 2, 1, 2)), "marker": "s"}
"""of a second M of the same module"""
Curves = tuple[pd.DataFrame, str, float]
"""rows, and the column that is drawn times a scale against length, a line per competitor, with quartiles if there are
any"""


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    """Write times.csv, memory.csv, rate.csv and targets.csv, and draw what they hold."""
    config = read_config(comparison)
    results = Results(read_records(root), config)
    times, memory, rate = results.time_table, results.memory_table, results.rate_table
    judged = pd.DataFrame(targets(results), columns=Target._fields)
    for name, table in (("times", times), ("memory", memory), ("rate", rate), ("targets", judged)):
        write_atomically(output / f"{name}.csv", table.to_csv(index=False, float_format="%.6g"))
    entries: list[FigureEntry | TableEntry] = []
    texts: dict[str, Any] = {**STUDY.words["texts"], **SETTING, "threads": config.threads}

    def add(name: str, table: pd.DataFrame, figure: Any, cells_of: Any, *arguments: Any) -> None:
        if not table.empty:
            words = STUDY.figure(name, **texts)
            entries.append(style.draw(output / "figures", words, figure, table, *arguments))
            entries.append(STUDY.table(name, cells_of(table), **texts))

    entries.append(STUDY.table("targets", judged, **texts))
    if results.run_table["run"].nunique() > 1:
        entries.append(STUDY.table("runs", results.run_table, **texts))
    add("rate", rate, rate_figure, cells.rate_cells, SHARE_TARGET)
    for topic, pairs in (
        ("operation", [(OURS, SDPA), (EQ_19, SDPA)]),
        ("mapped", [(AFTER, SOFTMAX)]),
        ("module", [(after(config.num_features), SOFTMAX), (after(config.fewer_features), SOFTMAX)]),
        ("training", [(AFTER, SOFTMAX)]),
    ):
        of_topic, in_memory = (table[table["topic"] == topic] for table in (times, memory))
        add(f"{topic}-time", of_topic, time_figure, cells.time_cells, results.time_crossings(topic, pairs))
        column = "rise" if topic == "training" else "extra"
        crossings = size_crossings(in_memory, column, pairs)
        add(f"{topic}-memory", in_memory, memory_figure, cells.memory_cells, column, crossings)
    positions, decays, decoding, busy = (
        times[times["topic"] == topic] for topic in ("positions", "decays", DECODING, BUSY)
    )
    add("positions", positions, additions_figure, cells.addition_cells)
    add("decays", decays, additions_figure, cells.addition_cells)
    parameters, state = (results.fact_table(fact) for fact in ("parameters", "state_bytes"))
    if not parameters.empty:
        entries.append(STUDY.table("parameters", cells.fact_cells(parameters), **texts))
    crossings = [*results.time_crossings(DECODING, pairs), *size_crossings(state, "value", pairs)]
    add("decoding", decoding, decoding_figure, cells.time_cells, state, crossings)
    if not decoding.empty:
        entries.append(STUDY.table("state", cells.fact_cells(state), **texts))
    if not busy.empty:
        entries.append(STUDY.table("decoding-busy", cells.time_cells(busy), **texts))
    return entries


def time_figure(times: pd.DataFrame, crossings: Sequence[Crossing] = ()) -> Figure:
    """Time against length, a panel per direction; ``times`` are the rows of one topic."""
    panels: dict[str, Curves] = {
        str(name): (rows, "median", 1e3) for name, rows in times.groupby("direction", sort=False)
    }
    figure = _curves_figure(panels, crossings, (7.5 if len(panels) == 1 else 10, 4.7), sharey=True)
    for axes, direction in zip(figure.axes, panels, strict=True):
        axes.set_title(direction if len(panels) > 1 else "")
    figure.axes[0].set_ylabel("time of one call (ms, logarithmic axis)")
    return figure


def memory_figure(memory: pd.DataFrame, column: str = "extra", crossings: Sequence[Crossing] = ()) -> Figure:
    """Peak memory against length."""
    figure = _curves_figure({"": (memory, column, 1 / MIB)}, crossings, (7.5, 4.8))
    figure.axes[0].set_ylabel(f"{'extra ' * (column == 'extra')}memory at its peak (MiB, logarithmic axis)")
    return figure


def decoding_figure(times: pd.DataFrame, state: pd.DataFrame, crossings: Sequence[Crossing] = ()) -> Figure:
    """Time of a token and size of the state against the context."""
    figure = _curves_figure({TOKEN: (times, "median", 1e3), "": (state, "value", 1 / MIB)}, crossings, (10, 4.6))
    for axes, words in zip(figure.axes, ("time of one token (ms", "state of one sequence (MiB"), strict=True):
        axes.set(xlabel="context (tokens, logarithmic axis)", ylabel=f"{words}, logarithmic axis)")
    return figure


def rate_figure(rate: pd.DataFrame, target: float) -> Figure:
    """Share of the matrix-product rate, and the cost of a token, against length."""
    figure, ((left, right),) = grid_of(1, 2, (5, 4.4))
    for direction, rows in rate.groupby("direction", sort=False):
        look: Any = {"color": "#d04a02", "linestyle": (0, (5, 2)) if direction == FORWARD else "-"}
        left.plot(rows["length"], rows["causal_share"], marker="v", label=direction, **look)
        left.fill_between(rows["length"], rows["causal_low"], rows["causal_high"], color="#d04a02", alpha=0.15, lw=0)
        dense = look | {"color": MUTED, "linewidth": 1}
        left.plot(rows["length"], rows["dense_share"], label=f"{direction}, counting whole chunks", **dense)
        right.plot(rows["length"], rows["cost"], marker="v", label=direction, **look)
    left.axhline(target, color="black", linewidth=0.8, label=f"target, {target:.0%}")
    left.set(ylim=(0, max(1.1 * target, left.get_ylim()[1])), ylabel="share of the sgemm rate")
    left.yaxis.set_major_formatter(PercentFormatter(1, 0))
    right.set(ylim=(0, None), ylabel="time of a token / mean over the lengths")
    for axes in (left, right):
        _length_axis(axes, rate["length"])
    legend_below(figure, [left], 3)
    return figure


def additions_figure(times: pd.DataFrame) -> Figure:
    """What each encoding or decay adds to a step, in percent: a row each; of encodings a panel per kernel."""
    parts = times["case"].str.partition(" ")
    is_decay = times["topic"].eq("decays").all()
    length = times["length"].map(", N = {:,}".format) if times["length"].nunique() > 1 else ""
    names = ((times["case"] if is_decay else parts[2]) + length).str.replace("@", ", ").map(partial(label, longest=48))
    rows = times.assign(kernel=parts[0], panel="" if is_decay else parts[0], name=names)
    others = [study.compared_with(topic, case) for topic, case in zip(times["topic"], times["case"], strict=True)]
    rows = rows[(times["case"] != others) & rows["ratio"].notna()]
    panels = list(dict.fromkeys(rows["panel"]))
    height = 0.7 + 0.5 * max(4, len(rows) / len(panels))
    size = (6.5 if is_decay else 3.3, height)
    figure, (drawn,) = grid_of(1, len(panels), size, (1, 0), sharex=True)
    for axes, panel in zip(drawn, panels, strict=True):
        mine = rows[rows["panel"] == panel]
        for place, (_, row) in enumerate(mine.iterrows()):
            median, low, high = (100 * (row[name] - 1) for name in ("ratio", "ratio_low", "ratio_high"))
            colour = style.kernel_colour(row["kernel"])
            axes.errorbar([median], [place], xerr=[[median - low], [high - median]], fmt="o", color=colour, capsize=3)
        axes.axvline(0, color=MUTED, linewidth=0.8)
        axes.set_yticks(range(len(mine)), mine["name"])
        axes.set(ylim=(len(mine) - 0.5, -0.5), title=label(panel), xlabel="added to a step (%)")
    return figure


def _curves_figure(
    panels: Mapping[str, Curves], crossings: Sequence[Crossing], size: tuple[float, float], *, sharey: bool = False
) -> Figure:
    """A panel of curves for each direction, with the crossings that belong to it."""
    figure, (axes,) = grid_of(1, len(panels), (size[0] / len(panels), size[1]), sharey=sharey)
    for each, curves in zip(axes, panels.values(), strict=True):
        _curves(each, *curves)
    by_direction = dict(zip(panels, axes, strict=True))
    for group in [by_direction] if sharey else [{direction: each} for direction, each in by_direction.items()]:
        _mark_crossings(group, [crossing for crossing in crossings if crossing.direction in group])
    legend_below(figure, axes[:1], 4 if size[0] > 8 else 3)
    return figure


def _curves(axes: Axes, rows: pd.DataFrame, column: str, scale: float) -> None:
    for index, (name, group) in enumerate(rows.groupby("case", sort=False)):
        group = group.sort_values("length")
        kind, _, features = str(name).partition(", M=")
        drawn = LOOKS.get(kind, style.kernel_style(kind, "")) | (SECOND if features and index else {})
        axes.plot(group["length"], group[column] * scale, label=label(str(name)), markersize=5, **drawn)
        if "low" in group:
            low, high = group["low"] * scale, group["high"] * scale
            axes.fill_between(group["length"], low, high, color=drawn["color"], alpha=0.15, linewidth=0)
    if not (rows[column] > 0).any():  # nothing that a logarithm has a place for
        return
    axes.set_yscale("log")
    bottom, top = axes.get_ylim()
    if top < 300 * bottom:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    _length_axis(axes, rows["length"])


def _length_axis(axes: Axes, lengths: "pd.Series[int]") -> None:
    ticks = sorted(set(lengths))
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=30 if len(ticks) > 4 else 0)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("length N (tokens, logarithmic axis)")


def _mark_crossings(panels: dict[str, Axes], crossings: Sequence[Crossing]) -> None:
    """A dotted line where ours becomes less, with its N in a strip of its own below the curves of all panels."""
    if not crossings:
        return
    pairs = list(dict.fromkeys((crossing.ours, crossing.other) for crossing in crossings))
    first = next(iter(panels.values()))
    bottom, top = first.get_ylim()
    each = 0.1  # part of the height
    strip = 1.1 * each * len(pairs)
    first.set_ylim(bottom * (bottom / top) ** (strip / (1 - strip)), top)
    for direction, ours, other, where in crossings:
        axes = panels[direction]
        axes.axvline(where, color=MUTED, linestyle=":", linewidth=1)
        left, right = axes.get_xlim()
        is_left = where**2 < left * right
        axes.annotate(
            f"{ours}\nbelow {other} from N = {where:,.0f}",
            (where, 0.02 + each * pairs.index((ours, other))),
            xycoords=("data", "axes fraction"),
            xytext=(4 if is_left else -4, 0),
            textcoords="offset points",
            horizontalalignment="left" if is_left else "right",
            fontsize=7.5,
            color=MUTED,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85},
        )
