"""What the project set out to reach in speed and memory (targets.toml), beside what the speed study measured."""

import itertools
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from experiments.show.rows import Rows
from experiments.studies.speed.results import MIB, RATES, Results, crossover, in_quartiles, quartiles, rate
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


def targets(root: Path) -> pd.DataFrame:
    """Every target of the project beside what was measured, and what else is of interest beside them."""
    results, rows = Results(root), []
    settings = asdict(results.config)
    is_judged = all(settings[name] in np.atleast_1d(value) for name, value in SETTING.items())
    judge = Judge(results, rate(root).set_index("length", drop=False))
    for line in (line for line in LINES if results.config.measures(line["topic"])):
        words = line | ({"target": ""} if line.get("own_preset") and results.config.topics is None else {})
        words = {k: fill(v, settings | words) if isinstance(v, str) else v for k, v in words.items()}
        try:
            measured, is_met = getattr(judge, line["quantity"])(SimpleNamespace(**words))
            verdict = (MET if is_met else MISSED) if words["target"] and is_judged else NO_TARGET
        except LookupError:  # the results have nothing of the kind
            measured, verdict = "", NOT_MEASURED
        if measured or words["target"]:
            rows.append((words["what"], words["target"], measured, verdict))
    return pd.DataFrame(rows, columns=["what", "target", "measured", "verdict"])


def table(rows: Rows) -> pd.DataFrame:
    return targets(rows.root)


class Judge:
    """A method for each quantity of targets.toml: what is found of a line. Raises LookupError if it is not there."""

    def __init__(self, results: Results, rates: pd.DataFrame) -> None:
        self.results, self.rates = results, rates

    def _gains(self, line: SimpleNamespace) -> dict[int, np.ndarray]:
        return self.results.gains(line.topic, line.direction, line.ours, line.other)

    def speedup(self, line: SimpleNamespace) -> Found:
        found = quartiles(self._gains(line)[line.length])
        return in_quartiles(found, ".3g", " times"), found[0] >= line.bound

    def added(self, line: SimpleNamespace) -> Found:
        found = quartiles(1 / self._gains(line)[line.length] - 1)
        return in_quartiles(found, "+.1%"), found[0] <= line.bound

    def memory(self, line: SimpleNamespace) -> Found:
        bytes_of = self.results.memory.set_index(["topic", "length", "case"])[line.column]
        mine, theirs = (float(bytes_of[line.topic, line.length, case]) for case in (line.ours, line.other))
        if not line.bound:
            return f"{mine / MIB:,.1f} MiB of {theirs / MIB:,.1f} MiB", True
        words = f"{mine / MIB:,.1f} MiB of {theirs / MIB:,.0f} MiB: 1/{theirs / max(mine, 1):.1f}"
        return words, mine * line.bound <= theirs

    def smallest_share(self, line: SimpleNamespace) -> Found:
        row = self._rates(line).nsmallest(1, "causal_share").iloc[0]
        share = in_quartiles(row[[*RATES["share"]]].tolist(), ".0%")
        words = f"by the fewest operations; {row['dense_share']:.0%} counting whole chunks"
        return f"{share} at N = {row['length']:,} {words}", row["causal_share"] >= line.bound

    def flat_cost(self, line: SimpleNamespace) -> Found:
        return _flat(self._rates(line)["cost"], line)

    def _rates(self, line: SimpleNamespace) -> pd.DataFrame:
        return _in_range(self.rates[self.rates["direction"] == line.direction], line)

    def flat_decoding(self, line: SimpleNamespace) -> Found:
        wanted = "time", line.topic, line.direction, line.ours
        seconds = {n: found for (*at, n, case), found in self.results.needs.items() if (*at, case) == wanted}
        within = _in_range(pd.DataFrame.from_dict(seconds, orient="index"), line)
        return _flat((within / within.mean()).median(axis=1), line)

    def faster_from(self, line: SimpleNamespace) -> Found:
        """Whether ours is faster than the other at every measured length from this one on."""
        known = self._gains(line)
        there = in_quartiles(quartiles(known[line.length]), ".3g", " times")
        medians = {n: float(np.median(gain)) for n, gain in known.items()}
        where, crossing = "not faster at the largest N", crossover(medians)
        if crossing is not None:
            where = f"faster from N = {crossing:,.0f}"
        elif min(medians.values()) > 1:
            where = f"faster from N = {min(known):,} or less"
        is_met = all(median > 1 for n, median in medians.items() if n >= line.length)
        return f"{there} at N = {line.length:,}; {where}", is_met

    def constant_state(self, line: SimpleNamespace) -> Found:
        needs = self.results.needs.items()
        sizes = sorted(size.item() for (kind, *_, case), size in needs if (kind, case) == ("state_bytes", line.ours))
        ends = dict.fromkeys((sizes[0], sizes[-1]))
        return " to ".join(f"{size / 1024:,.0f} KiB" for size in ends), len(ends) == 1


def _in_range(by_length: pd.DataFrame, line: SimpleNamespace) -> pd.DataFrame:
    """The rows from the first length to the last. Raises KeyError if one of these two is not there."""
    by_length.loc[[line.first, line.last]]
    return by_length.sort_index().loc[line.first : line.last]


def _flat(values: "pd.Series[float]", line: SimpleNamespace) -> Found:
    spread = values.max() / values.min() - 1
    return f"{spread:.0%}", bool(spread <= line.bound)
