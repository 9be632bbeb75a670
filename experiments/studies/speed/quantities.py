"""The quantities that the claims about cost (claims.toml) are judged on, from the speed study's record."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.judge.claims import ReadSample, Sample
from experiments.judge.runs import Runs
from experiments.records.schema import Comparison
from experiments.studies.speed.records import read_config, read_records
from experiments.studies.speed.results import Results, memory
from experiments.studies.speed.study import AFTER, DECODING, DIRECTIONS, OURS, SpeedConfig, after


def by_round(topic: str, names: Sequence[str], places: Sequence[int] = (-1, -1), value: str = "a / b") -> ReadSample:
    """What ``value`` makes of the seconds a and b of two competitors, round by round; n is b's length over a's.

    ``places`` are those of their lengths among all of the topic, the shortest first.
    """

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        results = Results(read_records(root), read_config(comparison))
        measured = lengths_of(topic, results.config)
        if len(measured) <= max(places) - min(places):
            return None
        features = results.config.num_features
        called = [after(features) if (topic, name) == ("module", AFTER) else name for name in names]
        lengths = [measured[place] for place in places]
        cases = [(topic, DIRECTIONS[topic][-1], n, name) for n, name in zip(lengths, called, strict=True)]
        failed = dict.fromkeys(case for case in cases if case in results.failures)
        lost = tuple(f"{case[3]}, N = {case[2]:,}: {results.failures[case]}" for case in failed)
        known = [results.seconds[case] for case in cases if case in results.seconds]
        if lost or len(known) < 2:
            return Sample({}, len(lost) or results.config.fewest_rounds, lost, unit_of_sample="rounds")
        rounds = min(map(len, known))
        table = pd.DataFrame(dict(zip("ab", (seconds[:rounds] for seconds in known), strict=True)))
        values: Any = table.assign(n=lengths[1] / lengths[0]).eval(value)
        notes = [f"N = {' and '.join(f'{n:,}' for n in sorted(set(lengths)))}"]
        if len(set(lengths)) > 1 and topic not in ("rate", DECODING):
            notes.append("the lengths were timed in rounds of their own")
        return Sample(values.to_dict(), rounds, unit_of_sample="rounds", notes=tuple(notes))

    return sample


def lengths_of(topic: str, config: SpeedConfig) -> list[int]:
    if topic == DECODING:
        return sorted(set(config.contexts))
    return sorted(set(config.position_lengths if topic in ("positions", "decays") else config.lengths))


def memory_slopes() -> ReadSample:
    """Of ln(memory) over ln(N) of our operation between neighbouring lengths."""

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        config = read_config(comparison)
        lengths = sorted(config.lengths if config.memory_lengths is None else config.memory_lengths)
        rows = memory(root).query("topic == 'operation' and case == @OURS and rise > 0", local_dict={"OURS": OURS})
        rises = dict(zip(rows["length"], rows["rise"], strict=True))
        pairs = [(a, b) for a, b in itertools.pairwise(lengths) if {a, b} <= rises.keys()]
        values = {b: math.log(rises[b] / rises[a]) / math.log(b / a) for a, b in pairs}
        return Sample(values, len(lengths) - 1, unit_of_sample="pairs of lengths") if len(lengths) > 1 else None

    return sample


def state_sizes() -> ReadSample:
    """The bytes carried from token to token after each context, over those after the shortest."""

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample:
        results = Results(read_records(root), read_config(comparison))
        first, *others = lengths_of(DECODING, results.config)
        table = results.sizes("state_bytes")
        sizes = table[table["case"] == AFTER].set_index("length")["value"]
        values = {n: sizes[n] / sizes[first] for n in others if {n, first} <= {*sizes.index}}
        return Sample(values, len(others), unit_of_sample="contexts")

    return sample
