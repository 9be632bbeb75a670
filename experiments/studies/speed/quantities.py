"""What the claims about cost (claims.toml) are about, from the speed study's record."""

import itertools
import math
from collections.abc import Callable

import numpy as np

from experiments.analysis.claims import ReadSample, Sample
from experiments.studies.speed.records import read_config, read_records
from experiments.studies.speed.results import Case, Results
from experiments.studies.speed.study import AFTER, ALL_LENGTHS, BACKWARD, OURS, STEP, TOKEN, SpeedConfig, after


def _reads(sample: Callable[[Results], Sample | None]) -> ReadSample:
    return lambda root, comparison, runs: sample(Results(read_records(root), read_config(comparison)))


def _by_round(
    cases: Callable[[SpeedConfig], list[Case]],
    quantity: Callable[[np.ndarray, np.ndarray, float], np.ndarray] = lambda a, b, growth: a / b,
) -> ReadSample:
    """What ``quantity`` makes of the seconds of two cases, put beside each other round by round, and of how many times
    longer the longer is; none if there is one case only.
    """

    def sample(results: Results) -> Sample | None:
        wanted = cases(results.config)
        if len(wanted) < 2:
            return None
        failed = dict.fromkeys(case for case in wanted if case in results.failures)
        lost = tuple(f"{case[3]}, N = {case[2]:,}: {results.failures[case]}" for case in failed)
        known = [results.seconds[case] for case in wanted if case in results.seconds]
        if lost or len(known) < 2:
            return Sample({}, len(lost) or results.config.fewest_rounds, lost, unit_of_sample="rounds")
        rounds = min(map(len, known))
        lengths = sorted({case[2] for case in wanted})
        values = quantity(known[0][:rounds], known[1][:rounds], lengths[-1] / lengths[0])
        notes = [f"N = {' and '.join(f'{n:,}' for n in lengths)}"]
        if len(lengths) > 1 and wanted[0][0] not in ALL_LENGTHS:
            notes.append("the lengths were timed in rounds of their own")
        return Sample(dict(enumerate(values.tolist())), rounds, unit_of_sample="rounds", notes=tuple(notes))

    return _reads(sample)


def time_slope(topic: str, name: str) -> ReadSample:
    """Of ln(time) over ln(N) between the two largest lengths."""
    return _by_round(
        lambda config: [(topic, BACKWARD, n, name) for n in sorted(set(config.lengths))[-2:]],
        lambda a, b, growth: np.log(b / a) / math.log(growth),
    )


def time_ratio(topic: str, name: str, other: str) -> ReadSample:
    """Time over another's at the longest length, forward and backward."""

    def cases(config: SpeedConfig) -> list[Case]:
        names = (after(config.num_features) if each == AFTER else each for each in (name, other))
        return [(topic, BACKWARD, max(config.lengths), each) for each in names]

    return _by_round(cases)


def token_times() -> ReadSample:
    """Time of a token of linear attention after the longest context over that after the shortest."""
    return _by_round(lambda config: [("decoding", TOKEN, f(config.contexts), AFTER) for f in (max, min)])


def position_cost(kernel: str, encoding: str, other: str) -> ReadSample:
    """The time of a training step over that of the same kernel with another encoding, less 1, at the longest length."""
    return _by_round(
        lambda config: [
            ("positions", STEP, max(config.position_lengths), f"{kernel} {each}") for each in (encoding, other)
        ],
        lambda a, b, growth: a / b - 1,
    )


def memory_slopes() -> ReadSample:
    """Of ln(memory) over ln(N) of our operation between neighbouring lengths."""

    def sample(results: Results) -> Sample | None:
        config, table = results.config, results.memory_table
        lengths = sorted(config.lengths if config.memory_lengths is None else config.memory_lengths)
        rows = table[(table["topic"] == "operation") & (table["case"] == OURS) & (table["rise"] > 0)]
        rises = dict(zip(rows["length"], rows["rise"], strict=True))
        pairs = [(a, b) for a, b in itertools.pairwise(lengths) if {a, b} <= rises.keys()]
        values = {b: math.log(rises[b] / rises[a]) / math.log(b / a) for a, b in pairs}
        return Sample(values, len(lengths) - 1, unit_of_sample="pairs of lengths") if len(lengths) > 1 else None

    return _reads(sample)


def state_sizes() -> ReadSample:
    """The bytes carried from token to token after each context, over those after the shortest."""

    def sample(results: Results) -> Sample:
        first, *others = sorted(set(results.config.contexts))
        table = results.fact_table("state_bytes").query("case == @AFTER")
        sizes = dict(zip(table["length"], table["value"], strict=True))
        values = {n: sizes[n] / sizes[first] for n in others if {n, first} <= sizes.keys()}
        return Sample(values, len(others), unit_of_sample="contexts")

    return _reads(sample)
