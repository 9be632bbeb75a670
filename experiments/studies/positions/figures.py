"""The figure and the table of the positions study."""

import textwrap
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis.statistics import estimates
from experiments.figures.dots import Rows
from experiments.figures.panels import mean_with_interval
from experiments.figures.style import MUTED, draw, variant_style
from experiments.records.schema import Comparison
from experiments.studies.length.measure import AS_TRAINED, IN_SHORT_WINDOWS, LOSSES, length_table, window_means
from experiments.studies.positions.measure import COST, LONGEST
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)
MIDDLE = "Middle: medians over rounds with quartiles."
COLUMNS = ["mean", "low", "high"]


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    parts = {
        "loss": final_losses(comparison, summary),
        "cost": costs(comparison, COST.read(root)),
        "rise": rises(LOSSES.read(root)),
    }
    if parts["loss"].empty:
        return []
    entries: Entries = [
        draw(output / "figures", STUDY.figure("three-questions"), three_questions, comparison, summary, parts),
        STUDY.table("three-questions", three_questions_table(comparison, parts)),
    ]
    stretched = stretched_rows(LOSSES.read(root))
    if not stretched.empty:
        entries.append(STUDY.table("stretched", length_table(stretched, comparison)))
    return entries


def stretched_rows(measured: pd.DataFrame | None) -> pd.DataFrame:
    """The loss by length of the variants whose RoPE was stretched too, as ``length_table`` takes it."""
    if measured is None:
        return pd.DataFrame()
    means = window_means(measured[measured["method"] != IN_SHORT_WINDOWS])
    return means[means.groupby("variant")["method"].transform("nunique") > 1]


def final_losses(comparison: Comparison, summary: pd.DataFrame) -> pd.DataFrame:
    """By variant: mean, low, high and n of the test metric."""
    rows = summary[(summary["metric"] == f"test_{comparison.objective.metric}") & (summary["n"] > 0)]
    return rows.set_index("variant")[["n", *COLUMNS]]


def costs(comparison: Comparison, measured: pd.DataFrame | None) -> pd.DataFrame:
    """By variant: the time of a step over that of its kernel without positions in the same round, less 1; median and
    quartiles.
    """
    if measured is None:
        return pd.DataFrame(columns=COLUMNS)
    times = measured.pivot(index="round", columns="variant", values="seconds")
    without = {each.name: f"{each.kernel}-none" for each in comparison.variants}
    found = {
        name: (times[name] / times[other] - 1).dropna().quantile([0.5, 0.25, 0.75]).tolist()
        for name, other in without.items()
        if {name, other} <= {*times.columns} and name != other
    }
    return pd.DataFrame.from_dict(found, orient="index", columns=COLUMNS)


def rises(measured: pd.DataFrame | None) -> pd.DataFrame:
    """By variant: the loss in the longest windows minus that in windows of the training length."""
    if measured is None:
        return pd.DataFrame(columns=COLUMNS)
    means = window_means(measured[measured["method"] == AS_TRAINED])
    wide = means.pivot(index=["variant", "seed"], columns="length", values="bits_per_byte")
    short = wide.columns.min()
    if LONGEST * short not in wide:
        return pd.DataFrame(columns=COLUMNS)
    change = (wide[LONGEST * short] - wide[short]).dropna().rename("change").reset_index()
    return estimates(change, "variant", "change")


def three_questions(comparison: Comparison, summary: pd.DataFrame, parts: dict[str, pd.DataFrame]) -> Figure:
    rows = Rows(comparison, summary)
    figure, panels = rows.figure(3, "left and right: test split, means over seeds with 95 % intervals", MIDDLE)
    scales = {"loss": 1, "cost": 100, "rise": 1}
    names = (
        f"test {comparison.objective.quantity}",
        "added to a training step (%)",
        f"loss at {LONGEST} times the length minus that at the length of training",
    )
    for axes, (what, scale), name in zip(panels, scales.items(), names, strict=True):
        for variant, height in zip(rows.variants, rows.heights, strict=True):
            if variant.name in parts[what].index:
                row: Any = (parts[what].loc[variant.name, COLUMNS] * scale).to_dict()
                look = variant_style(variant)
                mean_with_interval(axes, height, row, look["marker"], 6.5, look["color"])
        if what != "loss":
            axes.axvline(0, color=MUTED, linewidth=1.0)
        axes.set_xlabel(textwrap.fill(name, 26))
    return figure


def three_questions_table(comparison: Comparison, parts: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """A row of strings for each variant."""

    def shown(what: str, name: str, pattern: str) -> str:
        if name not in parts[what].index:
            return "-"
        mean, low, high = parts[what].loc[name, COLUMNS].to_numpy(float)
        return format(mean, pattern) + (f" [{low:{pattern}}, {high:{pattern}}]" if pd.notna(low) else "")

    rows = [
        {
            "variant": each.name,
            "loss": shown("loss", each.name, ".3f"),
            "added to a step": shown("cost", each.name, "+.0%"),
            f"change at {LONGEST} times the length": shown("rise", each.name, "+.3f"),
        }
        for each in comparison.variants
    ]
    return pd.DataFrame(rows)
