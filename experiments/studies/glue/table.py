"""The tasks side by side, beside RoFormer's table 2, from a comparison of each."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from experiments.data.registry import DATA_SETS
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
    by_data = dict[str, list[Path]]()
    for root in roots:
        by_data.setdefault(read_comparison(root).data[0].name, []).append(root)
    cells = {name: dict(zip(TASKS, published, strict=True)) for name, published in PUBLISHED.items()}
    floors, seeds, comparisons = {f"floor: {ONE_ANSWER}": dict[str, str]()}, set[int](), list[Comparison]()
    titles, missing, in_part = dict(TASKS), list[str](), list[str]()
    for task, title in TASKS.items():
        found = by_data.get(task) or by_data.get(f"{task}{PART}")
        if not found:
            missing.append(task)
            continue
        if task not in by_data:
            in_part.append(task)
            titles[task] = f"{title} (part)"
        comparison = read_comparison(found[0])
        for variant, score, n in _scores(found[0], comparison):
            cells.setdefault(variant, {})[task] = score
            seeds.add(n)
            comparisons.append(comparison)
        for floor in comparison.floors_of(comparison.objective.metric):
            called = ONE_ANSWER if floor.name == KNOWS_NOTHING else floor.name
            floors.setdefault(f"floor: {called}", {})[task] = f"{100 * floor.value:.1f}"
    if not comparisons:
        return None
    rows = [{"encoder": name} | row for name, row in (cells | floors).items() if row]
    table = pd.DataFrame(rows, columns=["encoder", *TASKS]).rename(columns=titles).fillna("-")
    parameters = {variant.parameters for comparison in comparisons for variant in comparison.variants}
    others = [root.name for same in by_data.values() for root in same[1:]]
    left_out = f"Left out, as another comparison is of the same task: {', '.join(others)}." if others else ""
    told = _fetched("Not run", missing), _fetched("Run in part", in_part), left_out
    table.attrs = {
        "seeds": " or ".join(f"{n} seeds" if n > 1 else "one seed" for n in sorted(seeds)),
        "parameters": " to ".join(f"{each:,}" for each in sorted({min(parameters), max(parameters)})),
        "examples": f"{max(int(comparison.config['test_windows']) for comparison in comparisons):,}",
        "missing": " ".join(filter(None, told)),
    }
    return table


def _fetched(what: str, tasks: Sequence[str]) -> str:
    """What is said of tasks, each with the commands that fetch its files; nothing of none."""
    told = ", ".join(f"{TASKS[task]} ({'; '.join(DATA_SETS[task].fetch)})" for task in tasks)
    return f"{what}, with what fetches the whole into the data directory DIR: {told}." if tasks else ""


def _scores(root: Path, comparison: Comparison) -> Iterator[tuple[str, str, int]]:
    """Variant, score in percent with half of its interval's width, and seeds of every variant with a finished run."""
    summary = summarise(root, comparison)
    tested = summary[(summary["metric"] == f"test_{comparison.objective.metric}") & (summary["n"] > 0)]
    for row in tested.to_dict("records"):
        half = "" if pd.isna(row["low"]) else f" ± {50 * (row['high'] - row['low']):.1f}"
        yield row["variant"], f"{100 * row['mean']:.1f}{half}", int(row["n"])
