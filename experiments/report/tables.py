"""The main table of a comparison, and how its runs ended."""

import re
import textwrap
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from experiments.console import printable
from experiments.judge.difference import SHARES
from experiments.judge.statistics import run_states, with_interval
from experiments.records.files import visible
from experiments.records.record import run_status
from experiments.records.schema import Comparison, Floor, VariantRecord
from experiments.show.rows import in_numbers

NOTHING = "-"
NO_BASELINE = " was not run"
ANY = (-inf, inf)
STATE, FLOPS = "state numbers", "MFLOPs a token"
NOT_TUNED = {
    "lower edge": "the lowest learning rate that was tried is its best",
    "upper edge": "the highest learning rate that was tried is its best",
    "diverged": "its loss diverged at every learning rate that was tried",
}


def main_table(summary: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """One row of strings per variant, and below them one per floor.

    A line break in a cell parts a number from what is told about it.
    """
    metrics: Any = summary.set_index(["variant", "metric"])
    objective, names = comparison.objective, {variant.name for variant in comparison.variants}
    baselines = {comparison.baseline_of(variant) for variant in comparison.variants}
    least = SHARES.get(objective.metric)  # intervals do not leave what the metric can be
    floors, rows = comparison.floors_of(objective.metric), list[dict[str, str]]()
    for variant in comparison.variants:
        name, baseline = variant.name, comparison.baseline_of(variant)
        test: Any = metrics.loc[name, f"test_{objective.metric}"]
        if baseline in names - {name}:
            minus = metrics.loc[name, f"test_{objective.metric}_minus_baseline"]
            difference = _with_interval(minus, "+.4f", ANY if least is None else (least - 1, 1 - least))
        elif name in baselines:
            difference = "baseline"
        else:
            difference = f"{baseline}{NO_BASELINE}"
        reached = NOTHING if baseline == name else _steps(metrics.loc[name, "steps_to_baseline"])
        speed, table = metrics.loc[name, "tokens_per_second"]["mean"], variant.position_parameters
        lost = in_numbers(test)
        rows.append(
            {
                "variant": "\n".join([name, *(f"[{mark}]" for mark in _marks(variant))]),
                "n": str(test["n"]) if test["n"] == test["planned"] else f"{test['n']} of {test['planned']}",
                f"test {objective.quantity}": _with_interval(test, ".3f", ANY if least is None else (least, 1)),
                "minus baseline": difference,
                **({"steps to baseline's final validation loss": reached} if objective.better == "lower" else {}),
                "tokens/s": NOTHING if pd.isna(speed) else f"{speed:,.0f}",
                "parameters": f"{variant.parameters:,}" + (f"\n[positions {table:,}]" if table else ""),
                **dict(zip((STATE, FLOPS), costs_in_words(variant.state, variant.flops), strict=True)),
                "not finished": f"{lost}: {test['reasons']}" if lost else "",
                **({"beats": test["beats"] or NOTHING} if floors else {}),
            }
        )
    for floor in floors:
        cells = {f"test {objective.quantity}": f"{floor.value:.3f}", "not finished": ""}
        rows.append(dict.fromkeys(rows[0], NOTHING) | {"variant": called(floor)} | cells)
    return pd.DataFrame(rows)


def costs_in_words(state: int | None, flops: int | None) -> tuple[str, str]:
    """A state's numbers, and millions of a token's operations."""
    return NOTHING if state is None else f"{state:,}", NOTHING if flops is None else f"{flops / 1e6:.2f}"


def called(floor: Floor) -> str:
    """What tables call a floor."""
    return f"floor: {floor.name}{'' if floor.equal else ' (not on equal ground)'}"


def with_something(table: pd.DataFrame) -> pd.DataFrame:
    """The columns of a main table that say something of a variant: without baselines there are no differences."""
    says_nothing = table.isin(["", NOTHING, "baseline"]) | table.map(lambda cell: cell.endswith(NO_BASELINE))
    return table.loc[:, ~says_nothing.all()]


def paper_table(summary: pd.DataFrame, comparison: Comparison, form: str) -> str:
    """The primary metric and its difference to the baseline, as "markdown", "latex" (booktabs) or "csv".

    A row per variant and floor: mean, and 95 % interval where there are three seeds. ``csv`` has a column for each
    number.
    """
    metric, quantity = comparison.objective.metric, comparison.objective.quantity
    names = {f"test_{metric}": f"test {quantity}", f"test_{metric}_minus_baseline": "minus baseline"}
    if form == "csv":
        found = summary[summary["metric"].isin(names)]
        same = {"metric": f"test_{metric}", "unit": comparison.objective.unit}
        floors = [same | {"variant": called(each), "mean": each.value} for each in comparison.floors_of(metric)]
        columns = ["variant", "metric", "unit", "n", "mean", "low", "high", *(["beats"] if floors else [])]
        table = pd.concat([found, pd.DataFrame(floors)]).astype({"n": "Int64"})
        return table.to_csv(index=False, columns=columns)
    table = main_table(summary, comparison)
    table = table[[each for each in ("variant", "n", *names.values(), "beats") if each in table]]
    flat = table.map(lambda cell: str(cell).replace("\n", " "))
    if form == "latex":
        styled = flat.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis="columns")
        made = styled.to_latex(hrules=True, column_format=f"lrrr{'l' * (len(flat.columns) - 4)}")
        return re.sub(r"(?<=[ \[])-(?=\d)", "$-$", made)
    rows = [list(flat.columns), ["---", "---:", "---:", "---:", "---"][: len(flat.columns)], *flat.to_numpy().tolist()]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def how_to_read(table: pd.DataFrame, summary: pd.DataFrame, comparison: Comparison) -> str:
    """What the numbers of a main table are, as far as it has them."""
    says = ["n counts finished seeds."]
    if "beats" in table:
        says.append(
            "A floor is what something simple has that reads what the runs read; beats names the best one that a "
            "variant is clearly better than."
        )
    says += [*_not_tuned(comparison), *_submitted(comparison)]
    if summary["low"].notna().any():
        says.append("In brackets: 95 % interval of the mean (Student's t); none below three seeds.")
    if "minus baseline" in table:
        says.append(f"A difference is taken seed by seed from the baseline: {comparison.baseline_in_words}.")
    if "tokens/s" in table:
        says.append("tokens/s is the mean of the runs' medians.")
    if STATE in table:
        says.append("State numbers are what a model carries from token to token, at the length of training.")
    if FLOPS in table:
        says.append("MFLOPs are millions of additions and multiplications of a forward pass, by formula.")
    return " ".join(says)


def _marks(variant: VariantRecord) -> list[str]:
    """What a table says of a variant beside its name."""
    return ["not tuned"] * bool(variant.not_tuned) + ["submitted"] * bool(variant.submitted)


def _submitted(comparison: Comparison) -> list[str]:
    """Of variants that others have trained, a sentence."""
    names = [f"{each.name} ({each.submitted})" for each in comparison.variants if each.submitted]
    return [f"Submitted, so trained elsewhere, with code from outside: {', '.join(names)}."] if names else []


def _not_tuned(comparison: Comparison) -> list[str]:
    """For each reason why variants are not tuned, a sentence."""
    names = {why: [each.name for each in comparison.variants if each.not_tuned == why] for why in NOT_TUNED}
    return [f"Not tuned, as {words}: {', '.join(names[why])}." for why, words in NOT_TUNED.items() if names[why]]


def notes_in_words(comparison: Comparison) -> list[str]:
    """The notes of a comparison; those of older versions in the words of this one."""
    taken = r"continued with another comparison's cells: (\d+) were taken over that other code trained \((.*)\)"
    words = r"\1 runs were taken over from another comparison, where other code trained them (\2)."
    return [
        re.sub(taken, words, note).replace("unevenly over the arms", "for some variants more than for others")
        for note in comparison.notes
    ]


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
    names = [variant.name for variant in comparison.variants]
    # Below the variants are the floors.
    fates = [f"{variant}: {fate}" for variant, fate in zip(names, rows["not finished"], strict=False) if fate]
    table = Table(
        title=Text(printable(f"{comparison.name}: mean over seeds [95 % interval]")),
        title_justify="left",
        caption=Text(visible("\n".join([*_not_tuned(comparison), *_submitted(comparison), *fates]))),
        caption_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    not_here = ["parameters", STATE, FLOPS, "not finished"]
    table.add_column("variant", no_wrap=True, min_width=max(map(len, names)))
    for column in rows.columns.drop(["variant", *not_here]):
        table.add_column(textwrap.fill(column, 14), justify="right")
    for row in rows.drop(columns=not_here).to_numpy().tolist():
        table.add_row(*(Text(visible(cell)) for cell in row))
    return table


def _with_interval(row: "pd.Series[Any]", pattern: str, limits: tuple[float, float] = ANY) -> str:
    if pd.isna(row["mean"]):
        return NOTHING
    low, high = row[["low", "high"]].astype(float).clip(*limits)
    return with_interval(row["mean"], low, high, pattern).replace(" [", "\n[")


def _steps(row: "pd.Series[Any]") -> str:
    if row["n"] == 0:
        return NOTHING
    if row["reached"] < row["n"]:
        return f"reached by {row['reached']} of {row['n']}"
    return _with_interval(row, ".0f", (0, inf))
