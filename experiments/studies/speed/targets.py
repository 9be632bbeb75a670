"""What the project set out to reach in speed and memory (targets.toml), beside what the speed study measured."""

import inspect
import tomllib
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.studies.speed.results import MIB, Results, faster_since, quartiles
from experiments.studies.speed.study import FOLDER

MET, MISSED, NOT_MEASURED, NO_TARGET = "met", "missed", "not measured", "no target"
_FILE: dict[str, Any] = tomllib.loads((FOLDER / "targets.toml").read_text(encoding="utf-8"))
SETTING: dict[str, Any] = _FILE["setting"]
"""what the targets were set for; with other settings nothing is met or missed"""
LINES: list[dict[str, Any]] = [
    _FILE["quantity"][line["quantity"]] | group | line for group in _FILE["group"] for line in group["targets"]
]
(SHARE_TARGET,) = (line["bound"] for line in LINES if line["quantity"] == "smallest_share")

Found = tuple[str, bool] | None
"""what was measured, in words, and whether the target is met; None: it was not measured"""


class Target(NamedTuple):
    """A target beside what was measured: ``measured`` in words, ``verdict`` met, missed, not measured or no target."""

    what: str
    target: str
    measured: str
    verdict: str


def targets(results: Results) -> list[Target]:
    """Every target of the project beside what was measured, and what else is of interest beside them."""
    settings = asdict(results.config)
    is_judged = all(settings[name] == value for name, value in SETTING.items())
    rows = []
    for line in LINES:
        values = dict(line)
        for name in ("features", "ours", "place"):
            values[name] = str(values.get(name, "")).format(**settings | values)
        what, target = (values.get(name, "").format(**settings | values) for name in ("what", "target"))
        measure = globals()[line["quantity"]]
        wanted = inspect.signature(measure).parameters
        found = measure(results, **{name: value for name, value in values.items() if name in wanted})
        if found is not None:
            verdict = (MET if found[1] else MISSED) if target and is_judged else NO_TARGET
            rows.append(Target(what, target, found[0], verdict))
        elif target:
            rows.append(Target(what, target, "", NOT_MEASURED))
    return rows


def speedup(
    results: Results, topic: str, direction: str, length: int, ours: str, other: str, bound: float = 0.0
) -> Found:
    ratio = results.ratio(topic, direction, length, other, ours)
    if ratio is None:
        return None
    return quartiles(ratio).show(".3g", " times"), bool(np.median(ratio) >= bound)


def memory(
    results: Results, topic: str, length: int, ours: str, other: str, column: str, bound: float | None = None
) -> Found:
    table = results.memory_table
    rows = table[(table["topic"] == topic) & (table["length"] == length)].set_index("case")[column]
    if not {ours, other} <= set(rows.index):
        return None
    mine, theirs = float(rows[ours]), float(rows[other])
    if bound is None:
        return f"{mine / MIB:,.1f} MiB of {theirs / MIB:,.1f} MiB", True
    return f"{mine / MIB:,.1f} MiB of {theirs / MIB:,.0f} MiB: 1/{theirs / max(mine, 1):.1f}", mine * bound <= theirs


def _rates(results: Results, direction: str, first: int, last: int) -> pd.DataFrame | None:
    table = results.rate_table
    rows = table[(table["direction"] == direction) & table["length"].between(first, last)]
    return rows if {first, last} <= set(rows["length"]) else None


def smallest_share(results: Results, direction: str, first: int, last: int, bound: float) -> Found:
    rows = _rates(results, direction, first, last)
    if rows is None:
        return None
    row = rows.sort_values("causal_share").iloc[0]
    words = (
        f"{row['causal_share']:.0%} [{row['causal_low']:.0%}, {row['causal_high']:.0%}] at N = {row['length']:,} "
        f"by the fewest operations; {row['dense_share']:.0%} counting whole chunks"
    )
    return words, bool(row["causal_share"] >= bound)


def flat_cost(results: Results, direction: str, first: int, last: int, bound: float) -> Found:
    rows = _rates(results, direction, first, last)
    return None if rows is None else _flat(rows["cost"].to_numpy(), bound)


def _flat(values: np.ndarray, bound: float) -> Found:
    spread = values.max() / values.min() - 1
    return f"{spread:.0%}", bool(spread <= bound)


def faster_from(results: Results, topic: str, direction: str, length: int, ours: str, other: str) -> Found:
    """Whether ours is faster than the other at every measured length from this one on."""
    known = results.speedups(topic, direction, ours, other)
    if length not in known:
        return None
    crossing, first = faster_since(known), next(iter(known))
    if crossing is not None:
        where = f"faster from N = {crossing:,.0f}"
    elif all(speedup.median > 1 for speedup in known.values()):
        where = f"faster from N = {first:,} or less"
    else:
        where = "not faster at the largest N"
    is_met = all(speedup.median > 1 for n, speedup in known.items() if n >= length)
    return f"{known[length].show('.3g', ' times')} at N = {length:,}; {where}", is_met


def added(results: Results, topic: str, direction: str, length: int, ours: str, other: str, bound: float) -> Found:
    ratio = results.ratio(topic, direction, length, ours, other)
    if ratio is None:
        return None
    return quartiles(ratio - 1).show("+.1%"), bool(np.median(ratio) - 1 <= bound)


def flat_decoding(
    results: Results, topic: str, direction: str, ours: str, first: int, last: int, bound: float
) -> Found:
    keys = [
        key for key in results.seconds if (*key[:2], key[3]) == (topic, direction, ours) and first <= key[2] <= last
    ]
    if not {first, last} <= {length for _, _, length, _ in keys}:
        return None
    seconds = np.array([results.seconds[key] for key in keys])
    return _flat(np.median(seconds / seconds.mean(axis=0), axis=1), bound)


def constant_state(results: Results, ours: str) -> Found:
    states = results.fact_table("state_bytes")
    sizes = sorted(set(states[states["case"] == ours]["value"]))
    if not sizes:
        return None
    return " to ".join(f"{size / 1024:,.0f} KiB" for size in dict.fromkeys((sizes[0], sizes[-1]))), len(sizes) == 1
