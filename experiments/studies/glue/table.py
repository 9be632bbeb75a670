"""The tasks side by side, beside RoFormer's table 2, from a comparison of each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.data.registry import DATA_SETS
from experiments.judge.curves import read_curves
from experiments.judge.statistics import summarise
from experiments.records.record import read_comparison
from experiments.records.schema import KNOWS_NOTHING, ONE_ANSWER, Comparison

PUBLISHED = {
    "BERT, as published": ("88.9", "93.5", "90.5", "85.8", "71.2", "84.6/83.4"),
    "RoFormer, as published": ("89.5", "90.7", "88.0", "87.0", "86.4", "80.2/79.8"),
}
"""RoFormer (arXiv 2104.09864), table 2"""
TASKS = {"mrpc": "MRPC", "sst-2": "SST-2", "qnli": "QNLI", "sts-b": "STS-B", "qqp": "QQP", "mnli": "MNLI"}
PART = "-part"


def overview(roots: Sequence[Path]) -> pd.DataFrame | None:
    """All tasks; a task of which only a part is there is named so. None if no run is finished.

    Of several comparisons of a task the first counts, and ``attrs`` name the others.
    """
    found, others = dict[str, tuple[Path, Comparison]](), list[str]()
    for root in roots:
        comparison = read_comparison(root)
        if comparison.data[0].name in found:
            others.append(root.name)
        found.setdefault(comparison.data[0].name, (root, comparison))
    lacking = [task for task in TASKS if task not in found and f"{task}{PART}" not in found]
    in_part = [task for task in TASKS if task not in found and task not in lacking]
    titles = {task: f"{title} (part)" if task in in_part else title for task, title in TASKS.items()}
    cells = {name: dict(zip(titles.values(), published, strict=True)) for name, published in PUBLISHED.items()}
    floors, seeds, comparisons = dict[str, dict[str, str]](), set[int](), list[Comparison]()
    for task in (task for task in TASKS if task not in lacking):
        root, comparison = found[f"{task}{PART}" if task in in_part else task]
        for variant, score, n in _scores(root, comparison):
            cells.setdefault(variant, {})[titles[task]] = score
            seeds.add(n)
            comparisons.append(comparison)
        for floor in comparison.floors_of(comparison.objective.metric):
            called = ONE_ANSWER if floor.name == KNOWS_NOTHING else floor.name
            floors.setdefault(f"floor: {called}", {})[titles[task]] = f"{100 * floor.value:.1f}"
    if not comparisons:
        return None
    cells |= dict(sorted(floors.items(), key=lambda row: row[0] != f"floor: {ONE_ANSWER}"))
    rows = [{"encoder": name} | row for name, row in cells.items()]
    table = pd.DataFrame(rows, columns=["encoder", *titles.values()]).fillna("-")
    parameters = [variant.parameters for comparison in comparisons for variant in comparison.variants]
    left_out = f"Left out, as another comparison is of the same task: {', '.join(others)}." if others else ""
    missing = _fetched("Not run", lacking), _fetched("Run in part", in_part), left_out
    table.attrs = {
        "seeds": " or ".join(f"{n} seeds" if n > 1 else "one seed" for n in sorted(seeds)),
        "parameters": " to ".join(f"{each:,}" for each in sorted({min(parameters), max(parameters)})),
        "examples": f"{max(int(comparison.config['test_windows']) for comparison in comparisons):,}",
        "missing": " ".join(filter(None, missing)),
    }
    return table


def _fetched(what: str, tasks: Sequence[str]) -> str:
    """What is said of tasks, each with the commands that fetch its files; nothing of none."""
    if not tasks:
        return ""
    told = (f"{TASKS[task]} ({'; '.join(DATA_SETS[task].fetch)})" for task in tasks)
    return f"{what}, with what fetches the whole into the data directory DIR: {', '.join(told)}."


def _scores(root: Path, comparison: Comparison) -> list[tuple[str, str, int]]:
    """Variant, score in words and seeds of every variant with a finished run."""
    summary = summarise(root, comparison, read_curves(root, comparison))
    tested = summary[(summary["metric"] == f"test_{comparison.objective.metric}") & (summary["n"] > 0)]
    return [(row["variant"], _percent(row), int(row["n"])) for row in tested.to_dict("records")]


def _percent(found: Mapping[Any, Any]) -> str:
    """A mean in percent, with half of its interval's width if there is one."""
    half = "" if pd.isna(found["low"]) else f" ± {50 * (found['high'] - found['low']):.1f}"
    return f"{100 * found['mean']:.1f}{half}"
