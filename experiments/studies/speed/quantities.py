"""The quantities that the claims about cost (claims.toml) are judged on, from the speed study's record."""

import itertools
import math
from collections.abc import Callable
from functools import wraps

import numpy as np

from experiments.judge.claims import ReadSample, Sample
from experiments.studies.speed.records import read_config, read_records
from experiments.studies.speed.results import Case, Results
from experiments.studies.speed.study import AFTER, BACKWARD, OURS, STEP, TOKEN, after


def _reads(sample: Callable[..., Sample | None]) -> Callable[..., ReadSample]:
    """``sample`` without its first argument, the results, which are read when the claim is judged."""

    @wraps(sample)
    def make(**arguments: str) -> ReadSample:
        return lambda root, comparison, runs: sample(Results(read_records(root), read_config(comparison)), **arguments)

    return make


@_reads
def time_slope(results: Results, topic: str, name: str) -> Sample | None:
    """Of ln(time) over ln(N) between the two largest lengths."""
    lengths = sorted(set(results.config.lengths))[-2:]
    cases = [(topic, BACKWARD, n, name) for n in lengths]
    return _by_round(results, cases, lambda a, b: np.log(b / a) / math.log(lengths[1] / lengths[0]))


@_reads
def time_ratio(results: Results, topic: str, name: str, other: str) -> Sample | None:
    """Time over another's at the longest length, forward and backward."""
    names = (after(results.config.num_features) if each == AFTER else each for each in (name, other))
    return _by_round(results, [(topic, BACKWARD, max(results.config.lengths), each) for each in names])


@_reads
def token_times(results: Results) -> Sample | None:
    """Time of a token of linear attention after the longest context over that after the shortest."""
    return _by_round(results, [("decoding", TOKEN, find(results.config.contexts), AFTER) for find in (max, min)])


@_reads
def added_cost(results: Results, topic: str, kernel: str, encoding: str, other: str) -> Sample | None:
    """The time of a training step over that of the same kernel with another encoding, less 1, at the longest length."""
    place = topic, STEP, max(results.config.position_lengths)
    return _by_round(results, [(*place, f"{kernel} {each}") for each in (encoding, other)], lambda a, b: a / b - 1)


@_reads
def memory_slopes(results: Results) -> Sample | None:
    """Of ln(memory) over ln(N) of our operation between neighbouring lengths."""
    config, table = results.config, results.memory_table
    lengths = sorted(config.lengths if config.memory_lengths is None else config.memory_lengths)
    rows = table[(table["topic"] == "operation") & (table["case"] == OURS) & (table["rise"] > 0)]
    rises = dict(zip(rows["length"], rows["rise"], strict=True))
    pairs = [(a, b) for a, b in itertools.pairwise(lengths) if {a, b} <= rises.keys()]
    values = {b: math.log(rises[b] / rises[a]) / math.log(b / a) for a, b in pairs}
    return Sample(values, len(lengths) - 1, unit_of_sample="pairs of lengths") if len(lengths) > 1 else None


@_reads
def state_sizes(results: Results) -> Sample:
    """The bytes carried from token to token after each context, over those after the shortest."""
    first, *others = sorted(set(results.config.contexts))
    table = results.fact_table("state_bytes").query("case == @AFTER")
    sizes = dict(zip(table["length"], table["value"], strict=True))
    values = {n: sizes[n] / sizes[first] for n in others if {n, first} <= sizes.keys()}
    return Sample(values, len(others), unit_of_sample="contexts")


def _by_round(
    results: Results,
    cases: list[Case],
    quantity: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda a, b: a / b,
) -> Sample | None:
    """What ``quantity`` makes of the seconds of two cases, put beside each other round by round; None if there is one
    case only.
    """
    if len(cases) < 2:
        return None
    failed = dict.fromkeys(case for case in cases if case in results.failures)
    lost = tuple(f"{case[3]}, N = {case[2]:,}: {results.failures[case]}" for case in failed)
    known = [results.seconds[case] for case in cases if case in results.seconds]
    if lost or len(known) < 2:
        return Sample({}, len(lost) or results.config.fewest_rounds, lost, unit_of_sample="rounds")
    rounds = min(map(len, known))
    values = quantity(known[0][:rounds], known[1][:rounds])
    lengths = sorted({case[2] for case in cases})
    notes = [f"N = {' and '.join(f'{n:,}' for n in lengths)}"]
    in_the_same_rounds = cases[0][0] in ("rate", "decoding")
    if len(lengths) > 1 and not in_the_same_rounds:
        notes.append("the lengths were timed in rounds of their own")
    return Sample(dict(enumerate(values.tolist())), rounds, unit_of_sample="rounds", notes=tuple(notes))
