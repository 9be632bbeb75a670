"""The main table of a comparison, and what became of its runs, in words and figures."""

import textwrap
from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from experiments.analysis.statistics import run_states
from experiments.records.files import visible
from experiments.records.record import run_directory, run_status
from experiments.records.schema import Comparison, VariantRecord

NOTHING = "-"


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
            difference = f"{baseline} was not run"
        speed = metrics.loc[name, "tokens_per_second"]["mean"]
        rows.append(
            {
                "variant": name,
                "n": f"{test['n']} of {test['planned']}",
                f"test {objective.quantity}": _with_interval(test, ".3f"),
                "minus baseline": difference,
                "steps to baseline's final validation loss": NOTHING if baseline == name else _steps(steps),
                "tokens/s": NOTHING if pd.isna(speed) else f"{speed:,.0f}",
                "parameters": _parameters(variant),
                "not finished": _fate(test),
            }
        )
    return pd.DataFrame(rows)


def unfinished_runs(root: Path, comparison: Comparison, curves: pd.DataFrame) -> list[dict[Any, Any]]:
    """``variant``, ``seed``, ``state``, ``reason`` and ``log`` (its path) of every cell that is not done."""
    states = run_states(root, comparison, curves)
    return [
        run
        | {"reason": run["reason"] or "no reason recorded"}
        | {"log": (run_directory(root, run["variant"], run["seed"]) / "log.txt").relative_to(root).as_posix()}
        for run in states[states["state"] != "done"].to_dict("records")
    ]


def happenings(root: Path, comparison: Comparison) -> list[tuple[str, list[str]]]:
    """What the cells' processes noted on the way (resumptions, damaged files): each cell's name and its sentences."""
    noted = [(f"{variant}, seed {seed}", run_status(root, variant, seed).notes) for variant, seed in comparison.runs]
    return [(run, notes) for run, notes in noted if notes]


def repeatability(comparison: Comparison) -> str:
    """Whether the same command gives the same numbers again."""
    if comparison.machine.get("device") == "cpu":
        return (
            "Trained on a CPU: the same command gives the same metrics and weights bit for bit on the same machine "
            "with the same versions, with any number of workers and whether or not it was stopped on the way. "
            "tokens_per_second and seconds are wall-clock times and differ; another processor or version sums in "
            "another order, and so differs in the last bits at first and visibly later."
        )
    found = comparison.nondeterministic
    named = f" PyTorch names in a training step of these variants: {'; '.join(found)}." if found else ""
    return (
        "Trained on a GPU: metrics are not the same bit for bit when the command is run again. Gradients that several "
        "threads add to one place (those of the token embedding and of attention) are added in an order that is not "
        "fixed, and matrix products may choose another algorithm. Batches, initial weights and feature draws are the "
        "same again. A resumed cell repeats the steps after its last checkpoint with such differences; where that "
        f"changed a recorded number, it is noted above.{named}"
    )


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


def _parameters(variant: VariantRecord) -> str:
    table = variant.position_parameters
    return f"{variant.parameters:,}" + (f"\n[positions {table:,}]" if table else "")


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


def _fate(row: "pd.Series[Any]") -> str:
    counts = [f"{row[word]} of {row['planned']} {word}" for word in ("failed", "unfinished") if row[word]]
    return f"{', '.join(counts)}: {row['reasons']}" if counts else ""
