"""From the speed study's records to its tables: medians, ratios within rounds, shares of what the machine can do.

Every function of a directory makes a table of it: ``times.csv`` and so on, or rows that figures and tables show.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from experiments.judge.runs import Runs
from experiments.judge.samples import ReadSample, Sample
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.show.rows import Rows
from experiments.studies.speed.records import Measurement, MemoryMeasurement, TimeMeasurement, read_config, read_records
from experiments.studies.speed.study import (
    AFTER,
    BUSY,
    CHUNKED,
    COPY,
    DECODING,
    DIRECTIONS,
    ELU,
    EQ_19,
    FORWARD,
    OURS,
    SDPA,
    SGEMM,
    SOFTMAX,
    SpeedConfig,
    after,
    compared_with,
)

MIB = 2**20
RATIOS = {"value": "ratio", "low": "ratio_low", "high": "ratio_high"}
RATES = {
    "share": ("causal_share", "causal_low", "causal_high"),
    "dense": ("dense_share",),
    "cost": ("cost",),
    "copy": ("copy_share", "copy_low", "copy_high"),
}
"""the columns of ``rate`` that are the value, low and high of a quantity"""
SIZES = ("memory", "state_bytes")
PLACE = ["quantity", "topic", "direction"]
LOOKS = {
    OURS: ("favor+", "none"),
    EQ_19: ("favor+", "rope-after"),
    EQ_19 + CHUNKED: ("favor+", "rope-before"),
    SDPA: ("softmax", "none"),
    SOFTMAX: ("softmax", "rope-before"),
}
"""the kernel and position whose look a competitor has; others have those of their names"""

Case = tuple[str, str, int, str]
"""topic, direction, length, competitor"""


class Results:
    """What was measured: ``seconds`` by round of each case, and ``failures``, why it was not timed."""

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
        ours = [(after(count), SOFTMAX) for count in (config.num_features, config.fewer_features)]
        self.pairs = {
            "operation": [(OURS, SDPA), (EQ_19, SDPA)],
            "module": ours,
            **{topic: [(AFTER, SOFTMAX)] for topic in ("mapped", "training")},
            DECODING: [(AFTER, SOFTMAX), (ELU, SOFTMAX)],
        }
        """ours and another, by topic: from which length on needs ours less?"""

    @classmethod
    def of(cls, root: Path) -> "Results":
        return cls(read_records(root), read_config(read_comparison(root)))

    def speedups(self, topic: str, direction: str, ours: str, other: str) -> dict[int, np.ndarray]:
        """Time of the other over ours by round, by length, the shortest first."""
        lengths = sorted(n for *place, n, case in self.seconds if (*place, case) == (topic, direction, ours))
        both = {n: [self.seconds.get((topic, direction, n, case)) for case in (ours, other)] for n in lengths}
        return {n: theirs / mine for n, (mine, theirs) in both.items() if mine is not None and theirs is not None}

    def sizes(self, fact: str) -> pd.DataFrame:
        """The competitors' sizes of one kind ("parameters", "state_bytes"), the later if one was recorded again.

        Without the models of the position encodings, whose sizes follow from them.
        """
        rows = [
            (record.topic, record.direction, sample.length, sample.case, getattr(sample, fact))
            for record in self.times
            for sample in record.samples
            if record.topic not in ("positions", "decays", BUSY)
        ]
        table = pd.DataFrame(rows, columns=["topic", "direction", "length", "case", "value"]).dropna()
        return table.drop_duplicates(["length", "case"], keep="last")


def times(root: Path) -> pd.DataFrame:
    """Seconds of every competitor, and its time within a round over what it is compared with: quartiles."""
    results = Results.of(root)
    ours = {"operation": OURS, "module": after(results.config.num_features)}
    rows: list[tuple[Any, ...]] = []
    for (topic, direction, length, case), seconds in results.seconds.items():
        over = compared_with(topic, case) or ours.get(topic, AFTER)
        other = results.seconds.get((topic, direction, length, over), math.nan)
        if topic != "rate":
            numbers = (len(seconds), *quartiles(seconds), *quartiles(seconds / other))
            rows.append((topic, direction, length, case, *numbers))
    columns = "topic direction length case rounds median low high ratio ratio_low ratio_high"
    return pd.DataFrame(rows, columns=columns.split())


def memory(root: Path) -> pd.DataFrame:
    """Bytes: the rise above the inputs, what has to be returned, and the rise without that (extra)."""
    columns = "topic direction length case rise returned extra method".split()
    rows = [msgspec.structs.asdict(each) for each in read_records(root) if isinstance(each, MemoryMeasurement)]
    table = pd.DataFrame(rows).reindex(columns=columns).dropna(subset=["rise", "returned"])
    table = table.astype({"rise": int, "returned": int})
    return table.assign(extra=(table["rise"] - table["returned"]).clip(lower=0))


def rate(root: Path) -> pd.DataFrame:
    """Our operation at all lengths in the same rounds as a matrix product.

    Of the sgemm rate, ``causal_share`` is by the strict count of ``operation_flops``, ``dense_share`` by the dense
    one. ``cost`` is the time of a token over its mean over the lengths of the same round. Where a copy was timed,
    ``copy_share`` is of its rate, by the count of ``operation_numbers``.
    """
    results = Results.of(root)
    config, rows = results.config, list[tuple[Any, ...]]()
    for record in results.times:
        place = record.topic, record.direction, config.gemm_size
        product, copy = (results.seconds.get((*place, name)) for name in (SGEMM, COPY))
        seconds = {each.length: np.array(each.seconds) for each in record.samples if each.case not in (SGEMM, COPY)}
        if record.topic != "rate" or product is None or not seconds:  # one or all others failed
            continue
        mean = np.mean([values / length for length, values in seconds.items()], axis=0)
        for length, values in seconds.items():
            strict, dense = operation_flops(length, config, record.direction, record.chunk_size or length)
            share = quartiles(strict / values / (2 * config.gemm_size**3 / product))
            numbers = [np.median(values), *share, share[0] * dense / strict, np.median(values / length / mean)]
            if copy is not None:
                copied = 2 * config.gemm_size**2 / copy  # it reads each number and writes it
                numbers += quartiles(operation_numbers(length, config, record.direction) / values / copied)
            rows.append((record.direction, length, len(values), *numbers))
    columns = "direction length rounds median causal_share causal_low causal_high dense_share cost"
    if any(case == COPY for *_, case in results.seconds):
        columns += " copy_share copy_low copy_high"
    return pd.DataFrame(rows, columns=columns.split())


def shown(root: Path) -> pd.DataFrame:
    """The rows of figures and tables: the value and the text of each quantity, topic, direction, length and case."""
    results, time, taken = Results.of(root), times(root), memory(root)
    time["rounds"] = time["rounds"].astype(str)  # else 11.0 beside rows that have none
    parts = [time.assign(quantity="time", value=time["median"], text=[_time_cell(row) for row in time.itertuples()])]
    others = [compared_with(topic, case) for topic, case in zip(time["topic"], time["case"], strict=True)]
    added = time[(time["case"] != others) & pd.notna(others)].dropna(subset="ratio")
    over = {name: added[column] - 1 for name, column in RATIOS.items()}
    parts.append(added.assign(quantity="added", text=[_ratio(row, ".3f") for row in added.itertuples()], **over))
    value = taken["extra"].where(taken["topic"] != "training", taken["rise"])
    sizes: Any = taken[["extra", "rise"]].to_numpy() / MIB
    text = [f"{extra:,.1f} MiB ({rise:,.1f})" for extra, rise in sizes]
    parts.append(taken.assign(quantity="memory", value=value, text=text))
    for fact in ("parameters", "state_bytes"):
        sizes = results.sizes(fact)
        parts.append(sizes.assign(quantity=fact, text=[f"{size:,.0f}" for size in sizes["value"]]))
    found = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    looks = [look_of(case, results.config) for case in found["case"]]
    found[["kernel", "position"]] = pd.DataFrame(looks, found.index, ["kernel", "position"], dtype=object)
    found["positions"] = [case.partition(" ")[2] for case in found["case"]]
    several = len(results.config.position_lengths) > 1
    found["name"] = found["case"] + (found["length"].map(", N = {:,}".format) if several else "")
    return found.assign(N=found["length"].map("{:,}".format), what=found["direction"])


def rates(root: Path) -> pd.DataFrame:
    """The same of ``rate``: the value, low and high of each quantity."""
    table = rate(root)
    table = table.assign(what=table["direction"], N=table["length"].map("{:,}".format))
    parts = []
    for quantity, ends in RATES.items():
        if {*ends} <= {*table}:
            numbers = dict(zip(("value", "low", "high"), table[list(ends)].to_numpy().T, strict=False))
            line = table["direction"] + (", counting whole chunks" if quantity == "dense" else "")
            parts.append(table.assign(quantity=quantity, line=line, **numbers))
    texts = [in_words(median) for median in table["median"]]
    return pd.concat([*parts, table.assign(quantity="time", value=texts)])


def look_of(case: str, config: SpeedConfig) -> tuple[str, str]:
    """The kernel and the position whose look a competitor has."""
    kind, _, features = case.partition(", M=")
    if features == str(config.fewer_features):
        return "favor+", "learned"
    kernel, _, position = kind.partition("@")[0].partition(" ")
    return LOOKS.get(kind, (kernel, position.replace(" ", "-")))


def gains(root: Path) -> pd.DataFrame:
    """What another needs over what ours needs: columns quantity, topic, direction, ours, other, length, value, low."""
    results, rows = Results.of(root), list[tuple[Any, ...]]()
    for topic, pairs in results.pairs.items():
        for direction, pair in itertools.product(DIRECTIONS[topic], pairs):
            for length, gain in results.speedups(topic, direction, *pair).items():
                rows.append(("time", topic, direction, *pair, length, *quartiles(gain)[:2]))
    found = shown(root)
    for keys, part in found[found["quantity"].isin(SIZES) & (found["value"] > 0)].groupby(PLACE):
        sizes = part.pivot(index="length", columns="case", values="value")
        for ours, other in results.pairs[str(keys[1])]:
            both = sizes.reindex(columns=[ours, other]).dropna()
            rows += [(*keys, ours, other, n, gain, gain) for n, gain in (both[other] / both[ours]).items()]
    return pd.DataFrame(rows, columns=[*PLACE, "ours", "other", "length", "value", "low"])


def crossings(root: Path) -> pd.DataFrame:
    """From which length on ours, the case, needs less.

    None where it is so from the first measured length, or not at the last; or, of times, where a quarter of the rounds
    at the next length say otherwise.
    """
    rows = []
    for keys, part in gains(root).groupby([*PLACE, "ours", "other"], sort=False):
        where = crossover(dict(zip(part["length"], part["value"], strict=True)))
        if where is not None and part[part["length"] > where]["low"].iloc[0] > 1:
            rows.append((*keys, where))
    return pd.DataFrame(rows, columns=[*PLACE, "case", "other", "value"])


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


def runs(rows: Rows) -> pd.DataFrame | None:
    """How many measurements of each topic each process run made, if there are several; those without one are one."""
    made = [(record.run, record.topic, record.kind) for record in read_records(rows.root)]
    table = pd.DataFrame(made, columns=["run", "topic", "kind"])
    several = table["run"].nunique() > 1
    return table.value_counts(sort=False).reset_index(name="measurements") if several else None


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


def quartiles(values: np.ndarray) -> tuple[float, ...]:
    """The median, the lower and the upper quartile."""
    return tuple(np.percentile(values, (50, 25, 75)).tolist())


def in_quartiles(values: Sequence[float], pattern: str, unit: str = "") -> str:
    median, low, high = (format(value, pattern) for value in values)
    return f"{median}{unit} [{low}, {high}]"


def in_words(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _time_cell(row: Any) -> str:
    """The median time; of what is measured beside one of ours also its time over that."""
    is_alone = row.ratio_low == row.ratio_high == 1 or math.isnan(row.ratio)
    is_added = compared_with(row.topic, row.case) is not None
    return in_words(row.median) + ("" if is_alone or is_added else f"; {_ratio(row, '.2f')}")


def _ratio(row: Any, pattern: str) -> str:
    return in_quartiles((row.ratio, row.ratio_low, row.ratio_high), pattern)


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
