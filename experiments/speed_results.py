"""From the speed experiment's records to its numbers: medians, ratios within rounds, crossovers, targets.

``measurements.jsonl`` is the truth, a JSON object a line, as schema.py says: a time has ``samples``, for every
competitor and length its seconds by round.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.record import read_lines
from experiments.schema import check_measurement
from experiments.speed_config import (
    AFTER,
    BACKWARD,
    BEFORE,
    EQ_19,
    FAST_TRANSFORMERS,
    FLA,
    FORWARD,
    NONE,
    OURS,
    PERFORMER,
    SDPA,
    SGEMM,
    SOFTMAX,
    STEP,
    TOKEN,
    SpeedConfig,
    after,
)
from experiments.speed_operations import operation_flops
from experiments.strict_json import Source, converted

RECORDS = "measurements.jsonl"
TIME_COLUMNS = "topic direction length case rounds median low high ratio ratio_low ratio_high".split()
MEMORY_COLUMNS = "topic direction length case rise returned extra method".split()
RATE_COLUMNS = "direction length rounds median causal_share causal_low causal_high dense_share cost".split()
SHARE_TARGET = 0.65
MET, MISSED, NOT_MEASURED, NO_TARGET = "met", "missed", "not measured", "no target"
TARGET_SETTING = {
    "device": "cpu",
    "precision": "float32",
    "threads": 2,
    "heads": 8,
    "head_dim": 64,
    "num_features": 256,
}
"""what the targets were set for; with other settings nothing is met or missed"""

Record = dict[str, Any]


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


class Target(NamedTuple):
    """A target beside what was measured: ``measured`` in words, ``verdict`` met, missed, not measured or no target."""

    what: str
    target: str
    measured: str
    verdict: str


def read_config(comparison: dict[str, Any]) -> SpeedConfig:
    """The settings in a parsed comparison.json; those that an older version did not record have their defaults.

    Raises:
        ValueError: a setting is of the wrong type or out of range.
    """
    source = Source("comparison.json", "run the comparison again to write it anew")
    return converted(comparison["config"], SpeedConfig, source, "$.config")


def read_records(root: Path) -> list[Record]:
    """Every measurement; where one was made again, the later.

    Raises:
        ValueError: a line is not as schema.py says; the message names it.
    """
    latest: dict[tuple[Any, ...], Record] = {}
    for row, source in read_lines(root / RECORDS, remedy="remove that line"):
        check_measurement(row, source)
        case = row["case"] if row["kind"] == "memory" else None
        latest[row["kind"], row["topic"], row["direction"], row["length"], case] = row
    return list(latest.values())


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


def samples(record: Record) -> dict[tuple[str, int], np.ndarray]:
    """(competitor, length) → seconds by round."""
    return {(sample["case"], sample["length"]): np.array(sample["seconds"]) for sample in record["samples"]}


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


def targets(records: list[Record], config: SpeedConfig) -> list[Target]:
    """Every target of the project beside what was measured, and what else is of interest beside them."""
    measured = _Measured(records, config)
    few, many = after(config.fewer_features), after(config.num_features)
    operation = f"operation, {BACKWARD}, N = 1,024"
    rows = []
    for name, words in ((OURS, operation), (EQ_19, f"{operation}, eq. 19")):
        speedup = measured.speedup("operation", BACKWARD, 1024, name, PERFORMER)
        rows += [
            _at_least(f"{words}: speed against performer-pytorch", 40, speedup),
            measured.memory("operation", words, 1024, name, "extra", 20),
        ]
    for other in (SDPA, FAST_TRANSFORMERS, FLA):
        rows += measured.beside("operation", BACKWARD, 1024, OURS, other, operation)
    rows += measured.memory_beside_softmax((1024, 16384))
    rows += [measured.smallest_share(BACKWARD, SHARE_TARGET), measured.flat_cost(BACKWARD, 0.15)]
    for direction in (FORWARD, BACKWARD):
        rows += [
            measured.faster_from("module", direction, 2048, many),
            measured.faster_from("module", direction, 1024, few),
            _at_least(
                f"module, M = {config.num_features}, {direction}, N = 16,384: speed against softmax",
                5,
                measured.speedup("module", direction, 16384, many, SOFTMAX),
            ),
        ]
    rows += [
        _at_least(
            "training step, N = 1,024: speed against PerformerLM",
            10,
            measured.speedup("training", STEP, 1024, AFTER, PERFORMER),
        ),
        *measured.beside("training", STEP, 1024, AFTER, SOFTMAX, "training step, N = 1,024"),
        measured.memory("training", "training step, N = 1,024", 1024, AFTER, "rise", 5),
        measured.rope_cost(AFTER, 0.05),
        measured.rope_cost(BEFORE, 0.05),
        measured.flat_decoding(0.10),
        measured.constant_state(),
        _at_least(
            "decoding, context 1,024: speed against performer-pytorch",
            50,
            measured.speedup("decoding", TOKEN, 1024, AFTER, PERFORMER),
        ),
        *measured.beside("decoding", TOKEN, 1024, AFTER, SOFTMAX, "decoding, context 1,024"),
    ]
    if all(getattr(config, name) == value for name, value in TARGET_SETTING.items()):
        return rows
    return [row._replace(verdict=NO_TARGET) if row.verdict in (MET, MISSED) else row for row in rows]


class _Measured:
    """The measurements, asked for what the targets are about."""

    def __init__(self, records: list[Record], config: SpeedConfig) -> None:
        self.config = config
        self.records = records
        self.rates = rate_table(records, config)
        self.memories = memory_table(records)

    def speedup(self, topic: str, direction: str, length: int, ours: str, other: str) -> Quartiles | None:
        """Time of the other over ours, by round."""
        return speedups(self.records, topic, direction, ours, other).get(length)

    def beside(self, topic: str, direction: str, length: int, ours: str, other: str, words: str) -> list[Target]:
        """A row without a target; none where it was not measured."""
        speedup = self.speedup(topic, direction, length, ours, other)
        return [] if speedup is None else [Target(f"{words}: speed against {other}", "", _times(speedup), NO_TARGET)]

    def memory_beside_softmax(self, lengths: Sequence[int]) -> list[Target]:
        """Rows without a target for the operation, of the lengths that were measured."""
        rows = self.memories[self.memories["topic"] == "operation"]
        extra = rows.set_index(["length", "case"])["extra"] / 2**20
        return [
            Target(
                f"operation, {BACKWARD}, N = {length:,}: extra memory against {SDPA}",
                "",
                f"{extra[length, OURS]:,.1f} MiB of {extra[length, SDPA]:,.1f} MiB",
                NO_TARGET,
            )
            for length in lengths
            if {(length, OURS), (length, SDPA)} <= set(extra.index)
        ]

    def smallest_share(self, direction: str, target: float) -> Target:
        what = f"operation, {direction}: smallest share of the sgemm rate, N = 512 to 16,384"
        rows = self._rates_of_targets(direction)
        if rows is None:
            return Target(what, f"at least {target:.0%}", "", NOT_MEASURED)
        row = rows.sort_values("causal_share").iloc[0]
        measured = (
            f"{row['causal_share']:.0%} [{row['causal_low']:.0%}, {row['causal_high']:.0%}] at N = {row['length']:,} "
            f"by the fewest operations; {row['dense_share']:.0%} counting whole chunks"
        )
        return Target(what, f"at least {target:.0%}", measured, _verdict(row["causal_share"] >= target))

    def flat_cost(self, direction: str, target: float) -> Target:
        what = f"operation, {direction}: cost of a token, largest over smallest, N = 512 to 16,384"
        rows = self._rates_of_targets(direction)
        if rows is None:
            return Target(what, f"within {target:.0%}", "", NOT_MEASURED)
        spread = rows["cost"].max() / rows["cost"].min() - 1
        return Target(what, f"within {target:.0%}", f"{spread:.0%}", _verdict(spread <= target))

    def _rates_of_targets(self, direction: str) -> pd.DataFrame | None:
        rows = self.rates[(self.rates["direction"] == direction) & self.rates["length"].between(512, 16384)]
        return rows if {512, 16384} <= set(rows["length"]) else None

    def memory(self, topic: str, words: str, length: int, ours: str, column: str, factor: float) -> Target:
        word = {"extra": "extra memory", "rise": "memory"}[column]
        what = f"{words}: {word} against performer-pytorch"
        target = f"at most 1/{factor:g}"
        rows = self.memories[(self.memories["topic"] == topic) & (self.memories["length"] == length)]
        by_case = rows.set_index("case")[column]
        if ours not in by_case or PERFORMER not in by_case:
            return Target(what, target, "", NOT_MEASURED)
        mine, other = float(by_case[ours]), float(by_case[PERFORMER])
        measured = f"{mine / 2**20:,.1f} MiB of {other / 2**20:,.0f} MiB: 1/{other / max(mine, 1):.1f}"
        return Target(what, target, measured, _verdict(mine * factor <= other))

    def faster_from(self, topic: str, direction: str, length: int, ours: str) -> Target:
        """Whether ours is faster than softmax at every measured length from this one on."""
        what = f"module, {ours.partition(', ')[2]}, {direction}: faster than softmax from N ≤ {length:,}"
        known = speedups(self.records, topic, direction, ours, SOFTMAX)
        if length not in known:
            return Target(what, "faster", "", NOT_MEASURED)
        from_on = {n: value for n, value in known.items() if n >= length}
        crossing = faster_from(known)
        if crossing is not None:
            where = f"faster from N = {crossing:,.0f}"
        else:
            first = next(iter(known))
            always = all(value.median > 1 for value in known.values())
            where = f"faster from N = {first:,} or less" if always else "not faster at the largest N"
        measured = f"{_times(known[length])} at N = {length:,}; {where}"
        return Target(what, "faster", measured, _verdict(all(value.median > 1 for value in from_on.values())))

    def rope_cost(self, name: str, target: float) -> Target:
        what = f"training step, N = 1,024: what {name.removeprefix('favor+ ')} the map adds"
        ratio = self.speedup("training", STEP, 1024, NONE, name)
        if ratio is None:
            return Target(what, f"at most {target:.0%}", "", NOT_MEASURED)
        low, median, high = (value - 1 for value in ratio)
        measured = f"{median:+.1%} [{low:+.1%}, {high:+.1%}]"
        return Target(what, f"at most {target:.0%}", measured, _verdict(median <= target))

    def flat_decoding(self, target: float) -> Target:
        what = "decoding: time of a token, slowest context over fastest, 128 to 65,536"
        contexts = [sample for sample in self._decoding() if 128 <= sample["length"] <= 65536]
        if not {128, 65536} <= {sample["length"] for sample in contexts}:
            return Target(what, f"within {target:.0%}", "", NOT_MEASURED)
        seconds = np.array([sample["seconds"] for sample in contexts])
        relative = np.median(seconds / seconds.mean(axis=0), axis=1)
        spread = relative.max() / relative.min() - 1
        return Target(what, f"within {target:.0%}", f"{spread:.0%}", _verdict(spread <= target))

    def constant_state(self) -> Target:
        what = "decoding: size of the state"
        sizes = {sample["state_bytes"] for sample in self._decoding() if "state_bytes" in sample}
        if not sizes:
            return Target(what, "constant", "", NOT_MEASURED)
        measured = " to ".join(f"{size / 1024:,.0f} KiB" for size in sorted({min(sizes), max(sizes)}))
        return Target(what, "constant", measured, _verdict(len(sizes) == 1))

    def _decoding(self) -> list[dict[str, Any]]:
        return [
            sample
            for record in self.records
            if record["topic"] == "decoding"
            for sample in record["samples"]
            if sample["case"] == AFTER
        ]


def _at_least(what: str, factor: float, speedup: Quartiles | None) -> Target:
    target = f"at least {factor:g} times"
    if speedup is None:
        return Target(what, target, "", NOT_MEASURED)
    return Target(what, target, _times(speedup), _verdict(speedup.median >= factor))


def _times(speedup: Quartiles) -> str:
    return f"{speedup.median:.3g} times [{speedup.low:.3g}, {speedup.high:.3g}]"


def _verdict(is_met: bool) -> str:
    return MET if is_met else MISSED
