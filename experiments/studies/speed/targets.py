"""What the project set out to reach in speed and memory, beside what the speed experiment measured."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.studies.speed.records import Record
from experiments.studies.speed.results import Quartiles, faster_from, memory_table, rate_table, speedups
from experiments.studies.speed.settings import (
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
    SOFTMAX,
    STEP,
    TOKEN,
    SpeedConfig,
    after,
)

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


class Target(NamedTuple):
    """A target beside what was measured: ``measured`` in words, ``verdict`` met, missed, not measured or no target."""

    what: str
    target: str
    measured: str
    verdict: str


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
