"""From the speed experiment's records to its numbers: medians, ratios within rounds, crossovers."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.studies.speed.operations import operation_flops
from experiments.studies.speed.records import Record, samples
from experiments.studies.speed.settings import AFTER, OURS, SGEMM, SpeedConfig, after

TIME_COLUMNS = "topic direction length case rounds median low high ratio ratio_low ratio_high".split()
MEMORY_COLUMNS = "topic direction length case rise returned extra method".split()
RATE_COLUMNS = "direction length rounds median causal_share causal_low causal_high dense_share cost".split()


class Quartiles(NamedTuple):
    low: float
    median: float
    high: float


class Crossing(NamedTuple):
    """From this length on, between two measured ones, the first competitor needs less than the second."""

    direction: str
    ours: str
    other: str
    length: float


def run_table(records: list[Record]) -> pd.DataFrame:
    """How many measurements of each topic each process run made; records without a run count as one."""
    rows = [(row.get("run", "not recorded"), row["topic"], row["kind"]) for row in records]
    table = pd.DataFrame.from_records(rows, columns=["run", "topic", "kind"])
    return table.groupby(["run", "topic", "kind"], sort=False).size().reset_index(name="measurements")


def quartiles(values: Sequence[float] | np.ndarray) -> Quartiles:
    return Quartiles(*(float(x) for x in np.percentile(values, (25, 50, 75))))


def reference(topic: str, case: str, config: SpeedConfig) -> str:
    """What a competitor of a topic is compared with."""
    if topic == "positions":
        return f"{case.partition(' ')[0]} none"
    return {"operation": OURS, "module": after(config.num_features)}.get(topic, AFTER)


def time_table(records: list[Record], config: SpeedConfig) -> pd.DataFrame:
    """Seconds of every competitor, and its time over ours within a round: medians and quartiles."""
    rows = []
    for record in records:
        if record["kind"] != "time" or record["topic"] == "rate":
            continue
        seconds = samples(record)
        for (case, length), values in seconds.items():
            ours = seconds.get((reference(record["topic"], case, config), length))  # none if it failed
            ratio = Quartiles(math.nan, math.nan, math.nan) if ours is None else quartiles(values / ours)
            low, median, high = quartiles(values)
            what = (record["topic"], record["direction"], length, case, len(values))
            rows.append((*what, median, low, high, ratio.median, ratio.low, ratio.high))
    return pd.DataFrame.from_records(rows, columns=TIME_COLUMNS)


def memory_table(records: list[Record]) -> pd.DataFrame:
    """Bytes: the rise above the inputs, what has to be returned, and the rise without that (extra)."""
    rows = [
        [record[name] for name in MEMORY_COLUMNS if name != "extra"]
        for record in records
        if record["kind"] == "memory" and "rise" in record
    ]
    table = pd.DataFrame.from_records(rows, columns=[name for name in MEMORY_COLUMNS if name != "extra"])
    table["extra"] = (table["rise"] - table["returned"]).clip(lower=0)
    return table[MEMORY_COLUMNS]


def fact_table(records: list[Record], fact: str) -> pd.DataFrame:
    """The competitors' sizes of one kind ("parameters", "state_bytes"): columns length, case, value.

    Where one was recorded again, the later. Without the models of the position encodings, whose sizes follow from them.
    """
    rows = [
        (sample["length"], sample["case"], sample[fact])
        for record in records
        if record["kind"] == "time" and record["topic"] != "positions"
        for sample in record["samples"]
        if fact in sample
    ]
    table = pd.DataFrame.from_records(rows, columns=["length", "case", "value"])
    return table.drop_duplicates(["length", "case"], keep="last")


def rate_table(records: list[Record], config: SpeedConfig) -> pd.DataFrame:
    """Our operation at all lengths in the same rounds as a matrix product.

    Of the sgemm rate, ``causal_share`` is by the strict count, the fewest operations: inside a chunk only the pairs
    that the causal mask keeps. ``dense_share`` counts all pairs of a chunk. ``cost`` is the time of a token over its
    mean over the lengths of the same round.
    """
    rows = []
    for record in records:
        if record["topic"] != "rate":
            continue
        seconds = samples(record)
        if (SGEMM, config.gemm_size) not in seconds:  # it failed
            continue
        gemm_rate = 2 * config.gemm_size**3 / seconds.pop((SGEMM, config.gemm_size))
        if not seconds:  # all others failed
            continue
        per_token = {length: values / length for (_, length), values in seconds.items()}
        mean = np.mean(list(per_token.values()), axis=0)
        for (_, length), values in seconds.items():
            fewest, dense = (
                operation_flops(length, config, record["direction"], record["chunk_size"], dense=whole)
                for whole in (False, True)
            )
            share = quartiles(fewest / values / gemm_rate)
            cost = float(np.median(per_token[length] / mean))
            shares = (share.median, share.low, share.high, share.median * dense / fewest)
            rows.append((record["direction"], length, len(values), float(np.median(values)), *shares, cost))
    return pd.DataFrame.from_records(rows, columns=RATE_COLUMNS)


def crossover(lengths: Sequence[float], ours: Sequence[float], other: Sequence[float]) -> float | None:
    """The length from which on ours is below the other, between two measured lengths, straight on log-log axes.

    None if ours is not below it at the last length, or is below it from the first.
    """
    gaps = [math.log(b / a) for a, b in zip(ours, other, strict=True)]  # above 0 ours is below the other
    not_below = [index for index, gap in enumerate(gaps) if gap <= 0]
    if not not_below or not_below[-1] == len(gaps) - 1:
        return None
    index = not_below[-1]
    share = gaps[index] / (gaps[index] - gaps[index + 1])
    start, end = math.log(lengths[index]), math.log(lengths[index + 1])
    return math.exp(start + share * (end - start))


def speedups(records: list[Record], topic: str, direction: str, ours: str, other: str) -> dict[int, Quartiles]:
    """Time of the other over ours within a round, by length."""
    found = {}
    for record in records:
        if (record["kind"], record["topic"], record["direction"]) != ("time", topic, direction):
            continue
        seconds = samples(record)
        for length in {length for case, length in seconds if case == ours}:
            if (other, length) in seconds:
                found[length] = quartiles(seconds[other, length] / seconds[ours, length])
    return dict(sorted(found.items()))


def faster_from(by_length: dict[int, Quartiles]) -> float | None:
    """The length from which on the median of ``speedups`` is above 1; None as ``crossover`` says."""
    return crossover(list(by_length), [1.0] * len(by_length), [speedup.median for speedup in by_length.values()])


def time_crossings(records: list[Record], topic: str, pairs: Sequence[tuple[str, str]]) -> list[Crossing]:
    """Where ours becomes faster, for each direction and pair (ours, other).

    None where the next measured length does not say so clearly: a quarter of its rounds say otherwise.
    """
    found = []
    for direction in dict.fromkeys(record["direction"] for record in records if record["topic"] == topic):
        for ours, other in pairs:
            by_length = speedups(records, topic, direction, ours, other)
            where = faster_from(by_length)
            if where is not None and next(by_length[n] for n in by_length if n > where).low > 1:
                found.append(Crossing(direction, ours, other, where))
    return found


def size_crossings(table: pd.DataFrame, column: str, pairs: Sequence[tuple[str, str]]) -> list[Crossing]:
    """Where ours becomes smaller, for each pair (ours, other), in a table of one topic and direction."""
    sizes = table.pivot(index="length", columns="case", values=column).sort_index()
    found = []
    for ours, other in pairs:
        if not {ours, other} <= set(sizes):
            continue
        both = sizes[[ours, other]].dropna()
        both = both[(both > 0).all(axis=1)]
        where = crossover(list(both.index), list(both[ours]), list(both[other])) if len(both) else None
        if where is not None:
            found.append(Crossing("", ours, other, where))
    return found
