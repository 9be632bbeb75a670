"""What the project set out to reach in speed and memory (targets.toml), beside what the speed study measured."""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.studies.speed.results import MIB, Results, faster_since, quartiles
from experiments.studies.speed.study import FOLDER
from experiments.study import read_toml

MET, MISSED, NOT_MEASURED, NO_TARGET = "met", "missed", "not measured", "no target"
_FILE = read_toml(FOLDER / "targets.toml")
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
        values: dict[str, Any] = {"place": "", "bound": 0} | line
        for name in ("features", "ours", "place", "what", "target"):
            values[name] = str(values.get(name, "")).format(**settings | values)
        what, target = values["what"], values["target"]
        found = globals()[line["quantity"]](results, SimpleNamespace(**values))
        if found is not None:
            verdict = (MET if found[1] else MISSED) if target and is_judged else NO_TARGET
            rows.append(Target(what, target, found[0], verdict))
        elif target:
            rows.append(Target(what, target, "", NOT_MEASURED))
    return rows


def speedup(results: Results, line: SimpleNamespace) -> Found:
    ratio = results.ratio(line.topic, line.direction, line.length, line.other, line.ours)
    return None if ratio is None else (quartiles(ratio).show(".3g", " times"), bool(np.median(ratio) >= line.bound))


def added(results: Results, line: SimpleNamespace) -> Found:
    ratio = results.ratio(line.topic, line.direction, line.length, line.ours, line.other)
    return None if ratio is None else (quartiles(ratio - 1).show("+.1%"), bool(np.median(ratio) - 1 <= line.bound))


def memory(results: Results, line: SimpleNamespace) -> Found:
    table = results.memory_table
    rows = table[(table["topic"] == line.topic) & (table["length"] == line.length)].set_index("case")[line.column]
    if not {line.ours, line.other} <= set(rows.index):
        return None
    mine, theirs = float(rows[line.ours]), float(rows[line.other])
    if not line.bound:
        return f"{mine / MIB:,.1f} MiB of {theirs / MIB:,.1f} MiB", True
    words = f"{mine / MIB:,.1f} MiB of {theirs / MIB:,.0f} MiB: 1/{theirs / max(mine, 1):.1f}"
    return words, mine * line.bound <= theirs


def _rates(results: Results, line: SimpleNamespace) -> pd.DataFrame | None:
    table = results.rate_table
    rows = table[(table["direction"] == line.direction) & table["length"].between(line.first, line.last)]
    return rows if {line.first, line.last} <= set(rows["length"]) else None


def smallest_share(results: Results, line: SimpleNamespace) -> Found:
    rows = _rates(results, line)
    if rows is None:
        return None
    row = rows.sort_values("causal_share").iloc[0]
    words = (
        f"{row['causal_share']:.0%} [{row['causal_low']:.0%}, {row['causal_high']:.0%}] at N = {row['length']:,} "
        f"by the fewest operations; {row['dense_share']:.0%} counting whole chunks"
    )
    return words, bool(row["causal_share"] >= line.bound)


def flat_cost(results: Results, line: SimpleNamespace) -> Found:
    rows = _rates(results, line)
    return None if rows is None else _flat(rows["cost"].to_numpy(), line.bound)


def flat_decoding(results: Results, line: SimpleNamespace) -> Found:
    place = line.topic, line.direction, line.ours
    seconds = {key[2]: times for key, times in results.seconds.items() if (*key[:2], key[3]) == place}
    within = np.array([times for length, times in seconds.items() if line.first <= length <= line.last])
    if not {line.first, line.last} <= seconds.keys():
        return None
    return _flat(np.median(within / within.mean(axis=0), axis=1), line.bound)


def _flat(values: np.ndarray, bound: float) -> Found:
    spread = values.max() / values.min() - 1
    return f"{spread:.0%}", bool(spread <= bound)


def faster_from(results: Results, line: SimpleNamespace) -> Found:
    """Whether ours is faster than the other at every measured length from this one on."""
    known = results.speedups(line.topic, line.direction, line.ours, line.other)
    if line.length not in known:
        return None
    crossing = faster_since(known)
    if crossing is not None:
        where = f"faster from N = {crossing:,.0f}"
    elif all(speedup.median > 1 for speedup in known.values()):
        where = f"faster from N = {min(known):,} or less"
    else:
        where = "not faster at the largest N"
    is_met = all(speedup.median > 1 for n, speedup in known.items() if n >= line.length)
    return f"{known[line.length].show('.3g', ' times')} at N = {line.length:,}; {where}", is_met


def constant_state(results: Results, line: SimpleNamespace) -> Found:
    states = results.fact_table("state_bytes")
    sizes = sorted(set(states[states["case"] == line.ours]["value"]))
    if not sizes:
        return None
    return " to ".join(f"{size / 1024:,.0f} KiB" for size in dict.fromkeys((sizes[0], sizes[-1]))), len(sizes) == 1
