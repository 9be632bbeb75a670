"""From the speed study's records to its numbers (medians, ratios within rounds, crossovers), and to cells of text."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd

from experiments.report.tables import NOTHING
from experiments.studies.speed.records import Measurement, MemoryMeasurement, TimeMeasurement
from experiments.studies.speed.study import (
    AFTER,
    COPY,
    DIRECTIONS,
    FORWARD,
    OURS,
    SGEMM,
    SpeedConfig,
    after,
    compared_with,
)

MIB = 2**20

Case = tuple[str, str, int, str]
"""topic, direction, length, competitor"""
Pairs = Sequence[tuple[str, str]]
"""each ours and another"""


class Quartiles(NamedTuple):
    median: float
    low: float
    high: float

    def show(self, pattern: str, unit: str = "") -> str:
        return f"{self.median:{pattern}}{unit} [{self.low:{pattern}}, {self.high:{pattern}}]"


class Crossing(NamedTuple):
    """From this length on, between two measured ones, the first competitor needs less than the second."""

    direction: str
    ours: str
    other: str
    length: float


def quartiles(values: Sequence[float] | np.ndarray) -> Quartiles:
    return Quartiles(*np.percentile(values, (50, 25, 75)).tolist())


class Results:
    """What was measured: ``seconds`` by round of each case, ``failures`` (why it was not timed), and the tables."""

    def __init__(self, records: Sequence[Measurement], config: SpeedConfig) -> None:
        self.records, self.config = records, config
        self.times = [record for record in records if isinstance(record, TimeMeasurement)]
        self.seconds: dict[Case, np.ndarray] = {
            (record.topic, record.direction, sample.length, sample.case): np.array(sample.seconds)
            for record in self.times
            for sample in record.samples
        }
        self.failures: dict[Case, str] = {
            (record.topic, record.direction, failure.length, failure.case): failure.reason
            for record in self.times
            for failure in record.failures
        }

    def ratio(self, topic: str, direction: str, length: int, case: str, over: str) -> np.ndarray:
        """Time of a competitor over another's, by round. Raises KeyError if one was not timed."""
        return self.seconds[topic, direction, length, case] / self.seconds[topic, direction, length, over]

    def by_length(self, topic: str, direction: str, case: str) -> dict[int, np.ndarray]:
        """Seconds of a competitor by round at each length, the shortest first."""
        found = {
            key[2]: seconds for key, seconds in self.seconds.items() if (*key[:2], key[3]) == (topic, direction, case)
        }
        return dict(sorted(found.items()))

    def speedups(self, topic: str, direction: str, ours: str, other: str) -> dict[int, Quartiles]:
        """Time of the other over ours within a round, by length."""
        mine, theirs = (self.by_length(topic, direction, case) for case in (ours, other))
        return {length: quartiles(theirs[length] / mine[length]) for length in mine if length in theirs}

    @cached_property
    def time_table(self) -> pd.DataFrame:
        """Seconds of every competitor, and its time within a round over what it is compared with: quartiles."""
        ours = {"operation": OURS, "module": after(self.config.num_features)}
        rows: list[tuple[Any, ...]] = []
        for (topic, direction, length, case), seconds in self.seconds.items():
            over = compared_with(topic, case) or ours.get(topic, AFTER)
            other = self.seconds.get((topic, direction, length, over), math.nan)
            if topic != "rate":
                numbers = (len(seconds), *quartiles(seconds), *quartiles(seconds / other))
                rows.append((topic, direction, length, case, *numbers))
        columns = "topic direction length case rounds median low high ratio ratio_low ratio_high"
        return pd.DataFrame(rows, columns=columns.split())

    @cached_property
    def memory_table(self) -> pd.DataFrame:
        """Bytes: the rise above the inputs, what has to be returned, and the rise without that (extra)."""
        found = [
            row for row in self.records if isinstance(row, MemoryMeasurement) and None not in (row.rise, row.returned)
        ]
        columns = "topic direction length case rise returned extra method"
        table = pd.DataFrame(map(msgspec.structs.asdict, found), columns=columns.split())
        return table.assign(extra=(table["rise"] - table["returned"]).clip(lower=0))

    @cached_property
    def rate_table(self) -> pd.DataFrame:
        """Our operation at all lengths in the same rounds as a matrix product.

        Of the sgemm rate, ``causal_share`` is by the strict count of ``operation_flops``, ``dense_share`` by the dense
        one. ``cost`` is the time of a token over its mean over the lengths of the same round. Where a copy was timed,
        ``copy_share`` is of its rate, by the count of ``operation_numbers``.
        """
        rows: list[tuple[Any, ...]] = []
        for record in self.times:
            place = record.topic, record.direction, self.config.gemm_size
            product, copy = (self.seconds.get((*place, name)) for name in (SGEMM, COPY))
            seconds = {each.length: np.array(each.seconds) for each in record.samples if each.case not in (SGEMM, COPY)}
            if record.topic != "rate" or product is None or not seconds:  # one or all others failed
                continue
            rate = 2 * self.config.gemm_size**3 / product
            mean = np.mean([values / length for length, values in seconds.items()], axis=0)
            for length, values in seconds.items():
                chunk_size = record.chunk_size or length
                fewest, dense = operation_flops(length, self.config, record.direction, chunk_size)
                share = quartiles(fewest / values / rate)
                numbers = [np.median(values), *share, share.median * dense / fewest, np.median(values / length / mean)]
                if copy is not None:
                    copied = 2 * self.config.gemm_size**2 / copy  # it reads each number and writes it
                    moved = operation_numbers(length, self.config, record.direction) / values
                    numbers += quartiles(moved / copied)
                rows.append((record.direction, length, len(values), *numbers))
        columns = "direction length rounds median causal_share causal_low causal_high dense_share cost"
        if any(case == COPY for *_, case in self.seconds):
            columns += " copy_share copy_low copy_high"
        return pd.DataFrame(rows, columns=columns.split())

    @cached_property
    def run_table(self) -> pd.DataFrame:
        """How many measurements of each topic each process run made; records without a run count as one."""
        rows = [(record.run, record.topic, record.kind) for record in self.records]
        table = pd.DataFrame(rows, columns=["run", "topic", "kind"])
        return table.value_counts(sort=False).reset_index(name="measurements")

    def fact_table(self, fact: str) -> pd.DataFrame:
        """The competitors' sizes of one kind ("parameters", "state_bytes"): columns length, case, value.

        Where one was recorded again, the later. Without the models of the position encodings, whose sizes follow from
        them.
        """
        samples = [
            sample for record in self.times if record.topic not in ("positions", "decays") for sample in record.samples
        ]
        sizes = {(each.length, each.case): getattr(each, fact) for each in samples if getattr(each, fact) is not None}
        return pd.DataFrame([(*key, size) for key, size in sizes.items()], columns=["length", "case", "value"])

    def time_crossings(self, topic: str, pairs: Pairs) -> list[Crossing]:
        """Where ours becomes faster, for each direction and pair.

        None where the next measured length does not say so clearly: a quarter of its rounds say otherwise.
        """
        found = []
        for direction, (ours, other) in itertools.product(DIRECTIONS[topic], pairs):
            by_length = self.speedups(topic, direction, ours, other)
            where = crossover({length: speedup.median for length, speedup in by_length.items()})
            if where is not None and next(by_length[n] for n in by_length if n > where).low > 1:
                found.append(Crossing(direction, ours, other, where))
        return found


def size_crossings(table: pd.DataFrame, column: str, pairs: Pairs) -> list[Crossing]:
    """Where ours becomes smaller, for each pair, in a table of one topic and direction."""
    sizes = table.pivot(index="length", columns="case", values=column)
    sizes = sizes[sizes > 0]
    wanted = {pair: sizes.reindex(columns=pair).dropna() for pair in pairs}
    starts = {pair: crossover((both[pair[1]] / both[pair[0]]).to_dict()) for pair, both in wanted.items()}
    return [Crossing("", *pair, where) for pair, where in starts.items() if where is not None]


def crossover(gains: Mapping[Any, float]) -> float | None:
    """The length from which on the other's over ours, by length, is above 1: straight on log-log axes in between.

    None if it is not above 1 at the last length, or is so from the first.
    """
    logarithms = [(math.log(length), math.log(gain)) for length, gain in gains.items()]
    for (start, before), (end, behind) in reversed(list(itertools.pairwise(logarithms))):
        if behind <= 0:
            return None
        if before <= 0:
            return math.exp(start + before / (before - behind) * (end - start))
    return None


def operation_flops(length: int, config: SpeedConfig, direction: str, chunk_size: int) -> tuple[int, int]:
    """Floating-point operations of chunked causal linear attention over all heads: the strict and the dense count.

    A head's forward pass builds and reads a state, 4·N·M·D, and takes two products inside the chunks. Of these only
    the pairs that the causal mask keeps are needed, (C + 1)/2 of C for a query: N·(C + 1)·(M + D), the strict count;
    whole matrix products calculate all C·C pairs of a chunk, 2·N·C·(M + D), the dense one. The backward pass costs
    twice that. Denominator, feature map and recomputation are not counted.
    """
    chunk, features, width = min(chunk_size, length), config.num_features, config.head_dim
    passes = 1 if direction == FORWARD else 3
    state = 4 * length * features * width
    strict, dense = (2 * pairs * (features + width) for pairs in (length * (chunk + 1) // 2, length * chunk))
    return passes * config.heads * (state + strict), passes * config.heads * (state + dense)


def operation_numbers(length: int, config: SpeedConfig, direction: str) -> int:
    """The fewest numbers that the operation moves over all heads: each input and output, and their gradients, once.

    Forward it reads q and k of M numbers a token and v of D, and writes D. The backward pass reads these and a gradient
    of D, and writes the gradients of q, k and v.
    """
    features, width = config.num_features, config.head_dim
    numbers = 2 * features + 2 * width if direction == FORWARD else 6 * features + 5 * width
    return config.heads * length * numbers


def _by_competitor(table: pd.DataFrame, cell: Callable[[dict[Any, Any]], str]) -> pd.DataFrame:
    """A row of text for each length, of times for each direction too, and a column per competitor."""
    rows: dict[tuple[str, int], dict[str, str]] = {}
    for entry in table.to_dict("records"):
        timed = {"what": entry["direction"], "rounds": str(entry["rounds"])} if "rounds" in table else {}
        row = rows.setdefault((timed.get("what", ""), entry["length"]), timed | {"N": f"{entry['length']:,}"})
        row[entry["case"]] = cell(entry)
    found = pd.DataFrame(list(rows.values())).fillna(NOTHING)
    return found.assign(rounds=found.pop("rounds")) if "rounds" in found else found


def time_cells(times: pd.DataFrame) -> pd.DataFrame:
    """Each competitor's median time, and its time over ours."""

    def cell(entry: dict[Any, Any]) -> str:
        ratio = _ratio(entry)
        is_alone = ratio.low == ratio.high == 1 or math.isnan(ratio.median)
        return in_words(entry["median"]) + ("" if is_alone else f"; {ratio.show('.2f')}")

    return _by_competitor(times, cell)


def memory_cells(memory: pd.DataFrame) -> pd.DataFrame:
    """Each competitor's extra memory, and the whole rise."""
    return _by_competitor(memory, lambda row: f"{row['extra'] / MIB:,.1f} MiB ({row['rise'] / MIB:,.1f})")


def fact_cells(facts: pd.DataFrame) -> pd.DataFrame:
    return _by_competitor(facts, lambda row: f"{row['value']:,}")


def addition_cells(times: pd.DataFrame) -> pd.DataFrame:
    """A row per length, kernel and what is added to it: its median time, and its time over what it is compared with."""
    rows = []
    for entry in times.to_dict("records"):
        kernel, _, position = entry["case"].partition(" ")
        is_over = entry["case"] != compared_with(entry["topic"], entry["case"]) and not math.isnan(entry["ratio"])
        other = "over RoPE" if entry["topic"] == "decays" else "over none"
        over = _ratio(entry).show(".3f") if is_over else NOTHING
        place = {"N": f"{entry['length']:,}", "kernel": kernel, "positions": position}
        rows.append(place | {"time": in_words(entry["median"]), other: over, "rounds": str(entry["rounds"])})
    return pd.DataFrame(rows)


def rate_cells(rate: pd.DataFrame) -> pd.DataFrame:
    """A row per direction and length of our operation beside the matrix product, and the copy if there is one."""

    def share(row: dict[Any, Any], kind: str) -> str:
        return Quartiles(row[f"{kind}_share"], row[f"{kind}_low"], row[f"{kind}_high"]).show(".0%")

    return pd.DataFrame(
        {
            "what": row["direction"],
            "N": f"{row['length']:,}",
            "time": in_words(row["median"]),
            "share of sgemm": share(row, "causal"),
            "counting whole chunks": f"{row['dense_share']:.0%}",
            **({"share of a copy": share(row, "copy")} if "copy_share" in row else {}),
            "cost of a token": f"{row['cost']:.2f}",
            "rounds": str(row["rounds"]),
        }
        for row in rate.to_dict("records")
    )


def in_words(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _ratio(entry: dict[Any, Any]) -> Quartiles:
    return Quartiles(entry["ratio"], entry["ratio_low"], entry["ratio_high"])
