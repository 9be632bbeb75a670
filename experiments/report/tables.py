"""The main table of a comparison, and how its runs ended."""

import textwrap
from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from experiments.analysis.statistics import run_states
from experiments.records.csv_files import to_csv
from experiments.records.files import visible
from experiments.records.record import run_status
from experiments.records.schema import Comparison

NOTHING = "-"
NO_BASELINE = " was not run"


def main_table(summary: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """One row of strings per variant. A line break in a cell parts a number from what is told about it."""
    metrics: Any = summary.set_index(["variant", "metric"])
    objective, names = comparison.objective, {variant.name for variant in comparison.variants}
    rows = []
    for variant in comparison.variants:
        name, baseline = variant.name, variant.baseline
        test: Any = metrics.loc[name, f"test_{objective.metric}"]
        if objective.metric == "accuracy":  # it cannot leave 0 to 1, and so its interval does not
            test = test.where(~test.index.isin(["low", "high"]), test[["low", "high"]].astype(float).clip(0, 1))
        steps: Any = metrics.loc[name, "steps_to_baseline"]
        if baseline == name:
            difference = "baseline"
        elif baseline in names:
            difference = _with_interval(metrics.loc[name, f"test_{objective.metric}_minus_baseline"], "+.4f")
        else:
            difference = f"{baseline}{NO_BASELINE}"
        speed, table = metrics.loc[name, "tokens_per_second"]["mean"], variant.position_parameters
        counts = [f"{test[word]} of {test['planned']} {word}" for word in ("failed", "unfinished") if test[word]]
        rows.append(
            {
                "variant": name,
                "n": str(test["n"]) if test["n"] == test["planned"] else f"{test['n']} of {test['planned']}",
                f"test {objective.quantity}": _with_interval(test, ".3f"),
                "minus baseline": difference,
                "steps to baseline's final validation loss": NOTHING if baseline == name else _steps(steps),
                "tokens/s": NOTHING if pd.isna(speed) else f"{speed:,.0f}",
                "parameters": f"{variant.parameters:,}" + (f"\n[positions {table:,}]" if table else ""),
                "not finished": f"{', '.join(counts)}: {test['reasons']}" if counts else "",
            }
        )
    return pd.DataFrame(rows)


def with_something(table: pd.DataFrame) -> pd.DataFrame:
    """The columns of a main table that say something of a variant: without baselines there are no differences."""
    says_nothing = table.isin(["", NOTHING, "baseline"]) | table.map(lambda cell: cell.endswith(NO_BASELINE))
    return table.loc[:, ~says_nothing.all()]


def paper_table(summary: pd.DataFrame, comparison: Comparison, form: str) -> str:
    """The primary metric and its difference to the baseline, as "markdown", "latex" (booktabs) or "csv".

    A row per variant: mean, and 95 % interval where there are three seeds. ``csv`` has a column for each number.
    """
    metric, quantity = comparison.objective.metric, comparison.objective.quantity
    names = {f"test_{metric}": f"test {quantity}", f"test_{metric}_minus_baseline": "minus baseline"}
    if form == "csv":
        found = summary[summary["metric"].isin(names)]
        return to_csv(found[["variant", "metric", "unit", "n", "mean", "low", "high"]])
    table = main_table(summary, comparison)[["variant", "n", *names.values()]]
    flat = table.map(lambda cell: str(cell).replace("\n", " "))
    if form == "latex":
        styled = flat.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis="columns")
        return styled.to_latex(hrules=True, column_format="lrrr")
    rows = [list(flat.columns), ["---", "---:", "---:", "---:"], *flat.to_numpy().tolist()]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def unfinished_runs(root: Path, comparison: Comparison, curves: pd.DataFrame) -> tuple[int, list[dict[Any, Any]]]:
    """How many runs are queued, and of each that began and is not done its ``variant``, ``seed``, ``state``, ``reason``
    and ``log`` (its path, or nothing).
    """
    states = run_states(root, comparison, curves)
    runs = states[~states["state"].isin(["done", "queued"])].to_dict("records")
    for run in runs:
        log = f"{run['variant']}/seed{run['seed']}/log.txt"
        run["log"] = log if (root / log).exists() else ""
    return int((states["state"] == "queued").sum()), runs


def happenings(root: Path, comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Notes of the runs (resumptions, damaged files): each run's name and its sentences."""
    noted = [(f"{variant}, seed {seed}", run_status(root, variant, seed).notes) for variant, seed in comparison.runs]
    return [(run, notes) for run, notes in noted if notes]


def terminal_table(summary: pd.DataFrame, comparison: Comparison) -> Table:
    """The main table for the end of a run in a terminal, with what did not finish below it."""
    rows = main_table(summary, comparison)
    fates = [f"{variant}: {fate}" for variant, fate in zip(rows["variant"], rows["not finished"], strict=True) if fate]
    table = Table(
        title=Text(f"{comparison.name}: mean over seeds [95 % interval]"),
        title_justify="left",
        caption=Text(visible("\n".join(fates))),
        caption_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("variant", no_wrap=True, min_width=max(map(len, rows["variant"])))
    for column in rows.columns.drop(["variant", "parameters", "not finished"]):
        table.add_column(textwrap.fill(column, 14), justify="right")
    for row in rows.drop(columns=["parameters", "not finished"]).to_numpy().tolist():
        table.add_row(*(Text(visible(cell)) for cell in row))
    return table


def _with_interval(row: "pd.Series[Any]", pattern: str) -> str:
    if pd.isna(row["mean"]):
        return NOTHING
    mean = format(row["mean"], pattern)
    return mean if pd.isna(row["low"]) else f"{mean}\n[{format(row['low'], pattern)}, {format(row['high'], pattern)}]"


def _steps(row: "pd.Series[Any]") -> str:
    if row["n"] == 0:
        return NOTHING
    if row["reached"] < row["n"]:
        return f"reached by {row['reached']} of {row['n']}"
    return _with_interval(row, ".0f")
