"""What the project set out to reach in speed and memory (targets.toml), beside what the speed study measured."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from experiments.studies.speed.results import MIB, Results, crossover, quartiles
from experiments.studies.speed.study import FOLDER
from experiments.study import fill, read_toml

MET, MISSED, NOT_MEASURED, NO_TARGET = "met", "missed", "not measured", "no target"
_FILE = read_toml(FOLDER / "targets.toml")
SETTING: dict[str, Any] = _FILE["setting"]
"""what the targets were set for; with other settings nothing is met or missed"""
LINES: list[dict[str, Any]] = [
    _FILE["quantity"][line["quantity"]] | group | line | dict(zip(group.get("each", {}), choice, strict=True))
    for group in _FILE["group"]
    for choice in itertools.product(*group.get("each", {}).values())
    for line in group["targets"]
]
(SHARE_TARGET,) = (line["bound"] for line in LINES if line["quantity"] == "smallest_share")

Found = tuple[str, bool]
"""what was measured, in words, and whether the target is met"""
T = TypeVar("T")


class Target(NamedTuple):
    """A target beside what was measured: ``measured`` in words, ``verdict`` met, missed, not measured or no target."""

    what: str
    target: str
    measured: str
    verdict: str


def targets(results: Results) -> list[Target]:
    """Every target of the project beside what was measured, and what else is of interest beside them."""
    settings = asdict(results.config)
    is_judged = all(settings[name] in np.atleast_1d(value) for name, value in SETTING.items())
    rows = []
    for line in LINES:
        if not results.config.measures(line["topic"]):
            continue
        if line.get("own_preset") and results.config.topics is None:
            line = line | {"target": ""}
        values = {k: fill(v, settings | line) if isinstance(v, str) else v for k, v in line.items()}
        try:
            measured, is_met = globals()[line["quantity"]](results, SimpleNamespace(**values))
            verdict = (MET if is_met else MISSED) if line["target"] and is_judged else NO_TARGET
        except LookupError:  # the results have nothing of the kind
            measured, verdict = "", NOT_MEASURED
        if measured or line["target"]:
            rows.append(Target(values["what"], values["target"], measured, verdict))
    return rows


def speedup(results: Results, line: SimpleNamespace) -> Found:
    found = quartiles(results.ratio(line.topic, line.direction, line.length, line.other, line.ours))
    return found.show(".3g", " times"), found.median >= line.bound


def added(results: Results, line: SimpleNamespace) -> Found:
    found = quartiles(results.ratio(line.topic, line.direction, line.length, line.ours, line.other) - 1)
    return found.show("+.1%"), found.median <= line.bound


def memory(results: Results, line: SimpleNamespace) -> Found:
    bytes_of = results.memory_table.set_index(["topic", "length", "case"])[line.column]
    mine, theirs = (float(bytes_of[line.topic, line.length, case]) for case in (line.ours, line.other))
    if not line.bound:
        return f"{mine / MIB:,.1f} MiB of {theirs / MIB:,.1f} MiB", True
    words = f"{mine / MIB:,.1f} MiB of {theirs / MIB:,.0f} MiB: 1/{theirs / max(mine, 1):.1f}"
    return words, mine * line.bound <= theirs


def smallest_share(results: Results, line: SimpleNamespace) -> Found:
    row = min(_rates(results, line), key=lambda row: row["causal_share"])
    words = (
        f"{row['causal_share']:.0%} [{row['causal_low']:.0%}, {row['causal_high']:.0%}] at N = {row['length']:,} "
        f"by the fewest operations; {row['dense_share']:.0%} counting whole chunks"
    )
    return words, row["causal_share"] >= line.bound


def flat_cost(results: Results, line: SimpleNamespace) -> Found:
    return _flat([row["cost"] for row in _rates(results, line)], line.bound)


def flat_decoding(results: Results, line: SimpleNamespace) -> Found:
    within = np.array(_in_range(results.by_length(line.topic, line.direction, line.ours), line))
    return _flat(np.median(within / within.mean(axis=0), axis=1).tolist(), line.bound)


def faster_from(results: Results, line: SimpleNamespace) -> Found:
    """Whether ours is faster than the other at every measured length from this one on."""
    known = results.speedups(line.topic, line.direction, line.ours, line.other)
    there = known[line.length].show(".3g", " times")
    crossing = crossover({n: speedup.median for n, speedup in known.items()})
    if crossing is not None:
        where = f"faster from N = {crossing:,.0f}"
    elif all(speedup.median > 1 for speedup in known.values()):
        where = f"faster from N = {min(known):,} or less"
    else:
        where = "not faster at the largest N"
    is_met = all(speedup.median > 1 for n, speedup in known.items() if n >= line.length)
    return f"{there} at N = {line.length:,}; {where}", is_met


def constant_state(results: Results, line: SimpleNamespace) -> Found:
    states = results.fact_table("state_bytes")
    sizes = sorted(set(states[states["case"] == line.ours]["value"]))
    ends = dict.fromkeys((sizes[0], sizes[-1]))
    return " to ".join(f"{size / 1024:,.0f} KiB" for size in ends), len(ends) == 1


def _rates(results: Results, line: SimpleNamespace) -> list[dict[Any, Any]]:
    rows = results.rate_table.to_dict("records")
    return _in_range({row["length"]: row for row in rows if row["direction"] == line.direction}, line)


def _in_range(by_length: Mapping[int, T], line: SimpleNamespace) -> list[T]:
    """What there is from the first length to the last. Raises KeyError if one of these two is not there."""
    if not {line.first, line.last} <= by_length.keys():
        raise KeyError
    return [found for length, found in by_length.items() if line.first <= length <= line.last]


def _flat(values: Sequence[float], bound: float) -> Found:
    spread = max(values) / min(values) - 1
    return f"{spread:.0%}", spread <= bound
