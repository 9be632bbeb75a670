"""From the speed study's records to its numbers (medians, ratios within rounds, crossovers), and to cells of text."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.report.tables import NOTHING
from experiments.studies.speed.records import Measurement, TimeMeasurement
from experiments.studies.speed.study import AFTER, FORWARD, OURS, SGEMM, SpeedConfig, after

MIB = 2**20
TIME_COLUMNS = "topic direction length case rounds median low high ratio ratio_low ratio_high".split()
MEMORY_COLUMNS = "topic direction length case rise returned extra method".split()
RATE_COLUMNS = "direction length rounds median causal_share causal_low causal_high dense_share cost".split()

Case = tuple[str, str, int, str]
"""topic, direction, length, competitor"""


class Quartiles(NamedTuple):
    low: float
    median: float
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
    return Quartiles(*(float(x) for x in np.percentile(values, (25, 50, 75))))


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
        self.failures = {
            (record.topic, record.direction, failure.length, failure.case): failure.reason
            for record in self.times
            for failure in record.failures
        }

    def ratio(self, topic: str, direction: str, length: int, case: str, over: str) -> np.ndarray | None:
        """Time of a competitor over another's, by round; None if one was not timed."""
        mine, other = (self.seconds.get((topic, direction, length, name)) for name in (case, over))
        return None if mine is None or other is None else mine / other

    def speedups(self, topic: str, direction: str, ours: str, other: str) -> dict[int, Quartiles]:
        """Time of the other over ours within a round, by length."""
        lengths = sorted({key[2] for key in self.seconds if key[:2] == (topic, direction)})
        ratios = {length: self.ratio(topic, direction, length, other, ours) for length in lengths}
        return {length: quartiles(ratio) for length, ratio in ratios.items() if ratio is not None}

    def reference(self, topic: str, case: str) -> str:
        """What a competitor of a topic is compared with."""
        if topic == "positions":
            return f"{case.partition(' ')[0]} none"
        return {"operation": OURS, "module": after(self.config.num_features)}.get(topic, AFTER)

    @cached_property
    def time_table(self) -> pd.DataFrame:
        """Seconds of every competitor, and its time over ours within a round: medians and quartiles."""
        rows = []
        for (topic, direction, length, case), seconds in self.seconds.items():
            if topic != "rate":
                ratio = self.ratio(topic, direction, length, case, self.reference(topic, case))
                over = Quartiles(math.nan, math.nan, math.nan) if ratio is None else quartiles(ratio)
                low, median, high = quartiles(seconds)
                numbers = (len(seconds), median, low, high, over.median, over.low, over.high)
                rows.append((topic, direction, length, case, *numbers))
        return pd.DataFrame.from_records(rows, columns=TIME_COLUMNS)

    @cached_property
    def memory_table(self) -> pd.DataFrame:
        """Bytes: the rise above the inputs, what has to be returned, and the rise without that (extra)."""
        rows = [
            (row.topic, row.direction, row.length, row.case, row.rise, row.returned, 0, row.method)
            for row in self.records
            if not isinstance(row, TimeMeasurement) and row.rise is not None
        ]
        table = pd.DataFrame.from_records(rows, columns=MEMORY_COLUMNS)
        return table.assign(extra=(table["rise"] - table["returned"]).clip(lower=0))

    @cached_property
    def rate_table(self) -> pd.DataFrame:
        """Our operation at all lengths in the same rounds as a matrix product.

        Of the sgemm rate, ``causal_share`` is by the strict count of ``operation_flops``, ``dense_share`` by the dense
        one. ``cost`` is the time of a token over its mean over the lengths of the same round.
        """
        rows = []
        for record in self.times:
            product = self.seconds.get((record.topic, record.direction, self.config.gemm_size, SGEMM))
            seconds = {each.length: np.array(each.seconds) for each in record.samples if each.case != SGEMM}
            if record.topic != "rate" or product is None or not seconds:  # one or all others failed
                continue
            rate = 2 * self.config.gemm_size**3 / product
            mean = np.mean([values / length for length, values in seconds.items()], axis=0)
            for length, values in seconds.items():
                fewest, dense = (
                    operation_flops(length, self.config, record.direction, record.chunk_size or length, dense=dense)
                    for dense in (False, True)
                )
                low, share, high = quartiles(fewest / values / rate)
                numbers = (float(np.median(values)), share, low, high, share * dense / fewest)
                cost = float(np.median(values / length / mean))
                rows.append((record.direction, length, len(values), *numbers, cost))
        return pd.DataFrame.from_records(rows, columns=RATE_COLUMNS)

    @cached_property
    def run_table(self) -> pd.DataFrame:
        """How many measurements of each topic each process run made; records without a run count as one."""
        counts = Counter((record.run, record.topic, record.plan.kind) for record in self.records)
        rows = [(*key, count) for key, count in counts.items()]
        return pd.DataFrame.from_records(rows, columns=["run", "topic", "kind", "measurements"])

    def fact_table(self, fact: str) -> pd.DataFrame:
        """The competitors' sizes of one kind ("parameters", "state_bytes"): columns length, case, value.

        Where one was recorded again, the later. Without the models of the position encodings, whose sizes follow from
        them.
        """
        rows = [
            (sample.length, sample.case, getattr(sample, fact))
            for record in self.times
            if record.topic != "positions"
            for sample in record.samples
            if getattr(sample, fact) is not None
        ]
        table = pd.DataFrame.from_records(rows, columns=["length", "case", "value"])
        return table.drop_duplicates(["length", "case"], keep="last")

    def time_crossings(self, topic: str, pairs: Sequence[tuple[str, str]]) -> list[Crossing]:
        """Where ours becomes faster, for each direction and pair (ours, other).

        None where the next measured length does not say so clearly: a quarter of its rounds say otherwise.
        """
        found = []
        for direction in dict.fromkeys(record.direction for record in self.times if record.topic == topic):
            for ours, other in pairs:
                by_length = self.speedups(topic, direction, ours, other)
                where = faster_since(by_length)
                if where is not None and next(by_length[n] for n in by_length if n > where).low > 1:
                    found.append(Crossing(direction, ours, other, where))
        return found


def operation_flops(length: int, config: SpeedConfig, direction: str, chunk_size: int, *, dense: bool = False) -> int:
    """The fewest floating-point operations of chunked causal linear attention (the strict count), over all heads.

    A head's forward pass builds and reads a state, 4·N·M·D, and takes two products inside the chunks, of which only
    the pairs that the causal mask keeps are needed, (C + 1)/2 of C for a query: N·(C + 1)·(M + D). The backward pass
    costs twice that. Denominator, feature map and recomputation are not counted.

    Args:
        dense: count all C·C pairs of a chunk instead, 2·N·C·(M + D): what whole matrix products calculate.
    """
    chunk = min(chunk_size, length)
    pairs = length * chunk if dense else length * (chunk + 1) // 2
    features, width = config.num_features, config.head_dim
    forward = config.heads * (4 * length * features * width + 2 * pairs * (features + width))
    return forward if direction == FORWARD else 3 * forward


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


def faster_since(by_length: dict[int, Quartiles]) -> float | None:
    """The length from which on the median of ``Results.speedups`` is above 1; None as ``crossover`` says."""
    return crossover(list(by_length), [1.0] * len(by_length), [speedup.median for speedup in by_length.values()])


def size_crossings(table: pd.DataFrame, column: str, pairs: Sequence[tuple[str, str]]) -> list[Crossing]:
    """Where ours becomes smaller, for each pair (ours, other), in a table of one topic and direction."""
    sizes = table.pivot(index="length", columns="case", values=column).sort_index()
    found = []
    for ours, other in pairs:
        if {ours, other} <= set(sizes):
            both = sizes[[ours, other]].dropna()
            both = both[(both > 0).all(axis=1)]
            where = crossover(list(both.index), list(both[ours]), list(both[other]))
            if where is not None:
                found.append(Crossing("", ours, other, where))
    return found


def by_competitor(table: pd.DataFrame, cell: Callable[[dict[Any, Any]], str], *places: str) -> pd.DataFrame:
    """A row of text for each of the places (direction, length, rounds, in this order), a column per competitor."""
    rows = []
    for _, group in table.groupby(list(places), sort=False):
        entries = group.to_dict("records")
        cells = {entry["case"]: cell(entry) for entry in entries}
        rows.append({name: _PLACES[name][1](entries[0][name]) for name in places} | cells)
    found = pd.DataFrame(rows).fillna(NOTHING)
    last = [name for name in ("rounds",) if name in found]
    return found[[*found.columns.drop(last), *last]].rename(columns={name: word for name, (word, _) in _PLACES.items()})


_PLACES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "direction": ("what", str), "length": ("N", "{:,}".format), "rounds": ("rounds", str)
}  # fmt: skip


def time_cell(entry: dict[Any, Any]) -> str:
    """A competitor's median time, and its time over ours."""
    ratio = _ratio(entry)
    is_alone = ratio.low == ratio.high == 1 or math.isnan(ratio.median)
    return in_words(entry["median"]) + ("" if is_alone else f"; {ratio.show('.2f')}")


def memory_cell(entry: dict[Any, Any]) -> str:
    """A competitor's extra memory, and the whole rise."""
    return f"{entry['extra'] / MIB:,.1f} MiB ({entry['rise'] / MIB:,.1f})"


def fact_cell(entry: dict[Any, Any]) -> str:
    return f"{int(entry['value']):,}"


def position_cells(times: pd.DataFrame) -> pd.DataFrame:
    """A row per length, kernel and position encoding: its median time, and its time over that without positions."""
    rows = []
    for entry in times.to_dict("records"):
        kernel, _, encoding = entry["case"].partition(" ")
        is_reference = encoding == "none" or math.isnan(entry["ratio"])
        over = NOTHING if is_reference else _ratio(entry).show(".3f")
        cells = (f"{entry['length']:,}", kernel, encoding, in_words(entry["median"]), over, str(entry["rounds"]))
        rows.append(dict(zip(("N", "kernel", "positions", "time", "over none", "rounds"), cells, strict=True)))
    return pd.DataFrame(rows)


def rate_cells(rate: pd.DataFrame) -> pd.DataFrame:
    """A row per direction and length of our operation beside the matrix product."""
    shares = zip(rate["causal_low"], rate["causal_share"], rate["causal_high"], strict=True)
    return pd.DataFrame(
        {
            "what": rate["direction"],
            "N": rate["length"].map("{:,}".format),
            "time": rate["median"].map(in_words),
            "share of sgemm": [Quartiles(*share).show(".0%") for share in shares],
            "counting whole chunks": rate["dense_share"].map("{:.0%}".format),
            "cost of a token": rate["cost"].map("{:.2f}".format),
            "rounds": rate["rounds"].map(str),
        }
    )


def in_words(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _ratio(entry: dict[Any, Any]) -> Quartiles:
    return Quartiles(entry["ratio_low"], entry["ratio"], entry["ratio_high"])
