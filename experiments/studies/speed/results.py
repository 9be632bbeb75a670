"""From the speed study's records to its tables: medians, ratios within rounds, shares of what the machine can do.

Every function of a directory makes a table of it: ``times.csv`` and so on, or rows that figures and tables show.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import asdict

from experiments.judge.runs import Runs
from experiments.judge.samples import ReadSample, Sample
from experiments.judge.statistics import with_interval
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.show.rows import Rows
from experiments.studies.speed.records import read_config, read_records
from experiments.studies.speed.study import (
    AFTER,
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
RATES = {
    "share": ("causal_share", "causal_low", "causal_high"),
    "dense": ("dense_share",),
    "cost": ("cost",),
    "copy": ("copy_share", "copy_low", "copy_high"),
}
"""the columns of ``rate`` that are the value, low and high of a quantity"""
SIZES = {"parameters": "training", "state_bytes": DECODING}
"""the topic whose models a size is shown of"""
LOOKS = {
    OURS: ("favor+", "none"),
    EQ_19: ("favor+", "rope-after"),
    EQ_19 + CHUNKED: ("favor+", "rope-before"),
    SDPA: ("softmax", "none"),
    SOFTMAX: ("softmax", "rope-before"),
}
"""the kernel and position whose look a competitor has; others have those of their names"""
CASE = ["topic", "direction", "length", "case"]


class Results:
    """What was measured. A case is its topic, direction, length and competitor.

    ``needs`` has what it takes by round or once, by the quantity ("time": seconds; "memory", "state_bytes": bytes) and
    the case; ``failures`` why one was not timed.
    """

    def __init__(self, root: Path) -> None:
        self.config, self.records, taken = read_config(read_comparison(root)), read_records(root), memory(root)
        # Of a training step its gradients count.
        shown_of = taken["extra"].where(taken["topic"] != "training", taken["rise"])
        self.memory = taken.assign(quantity="memory", value=shown_of)
        self.needs, self.failures = dict[tuple[Any, ...], np.ndarray](), dict[tuple[Any, ...], str]()
        sizes = []
        for record in (record for record in self.records if record.kind == "time"):
            place = record.topic, record.direction
            self.failures |= {(*place, each.length, each.case): each.reason for each in record.failures}
            for each in record.samples:
                self.needs["time", *place, each.length, each.case] = np.array(each.seconds)
                facts = {fact: getattr(each, fact) for fact, topic in SIZES.items() if topic == record.topic}
                sizes += [(fact, *place, each.length, each.case, value) for fact, value in facts.items() if value]
        self.sizes = pd.DataFrame(sizes, columns=["quantity", *CASE, "value"])
        for *key, size in [*self.sizes.itertuples(index=False), *self.memory[["quantity", *CASE, "value"]].to_numpy()]:
            self.needs[tuple(key)] = np.array([size])

    def gains(self, topic: str, direction: str, ours: str, other: str, quantity: str = "time") -> dict[int, np.ndarray]:
        """What the other needs over what ours does, by round, by length, the shortest first."""
        lengths = sorted(n for *at, n, case in self.needs if (*at, case) == (quantity, topic, direction, ours))
        both = {n: [self.needs.get((quantity, topic, direction, n, case)) for case in (ours, other)] for n in lengths}
        found = {n: (mine, theirs) for n, (mine, theirs) in both.items() if mine is not None and theirs is not None}
        return {n: theirs / mine for n, (mine, theirs) in found.items() if mine.min() > 0 and theirs.min() > 0}

    @property
    def pairs(self) -> list[tuple[str, str, str, str]]:
        """Topic, direction, ours and another: from which length on needs ours less?"""
        config = self.config
        by_topic = {
            "operation": [(OURS, SDPA), (EQ_19, SDPA)],
            "module": [(after(count), SOFTMAX) for count in (config.num_features, config.fewer_features)],
            "mapped": [(AFTER, SOFTMAX)],
            "training": [(AFTER, SOFTMAX)],
            DECODING: [(AFTER, SOFTMAX), (ELU, SOFTMAX)],
        }
        return [
            (topic, direction, *pair)
            for topic, pairs in by_topic.items()
            for direction, pair in itertools.product(DIRECTIONS[topic], pairs)
        ]


def times(root: Path) -> pd.DataFrame:
    """Seconds of every competitor, and its time within a round over what it is compared with: quartiles."""
    results, rows = Results(root), list[tuple[Any, ...]]()
    ours = {"operation": OURS, "module": after(results.config.num_features)}
    for (quantity, topic, *at, case), seconds in results.needs.items():
        if quantity == "time" and topic != "rate":
            over = compared_with(topic, case) or ours.get(topic, AFTER)
            ratio = seconds / results.needs.get((quantity, topic, *at, over), math.nan)
            rows.append((topic, *at, case, len(seconds), *quartiles(seconds), *quartiles(ratio)))
    return pd.DataFrame(rows, columns=[*CASE, *"rounds median low high ratio ratio_low ratio_high".split()])


def memory(root: Path) -> pd.DataFrame:
    """Bytes: the rise above the inputs, what has to be returned, and the rise without that (extra)."""
    records = [asdict(record) for record in read_records(root) if record.kind == "memory" and record.rise is not None]
    table = pd.DataFrame(records, columns=[*CASE, "rise", "returned", "method"])
    table.insert(len(CASE) + 2, "extra", (table["rise"] - table["returned"]).clip(lower=0))
    return table


def rate(root: Path) -> pd.DataFrame:
    """Our operation at all lengths in the same rounds as a matrix product.

    Of the sgemm rate, ``causal_share`` is by the strict count of ``operation_flops``, ``dense_share`` by the dense
    one. ``cost`` is the time of a token over its mean over the lengths of the same round. Where a copy was timed,
    ``copy_share`` is of its rate, by the count of ``operation_numbers``.
    """
    results = Results(root)
    config, rows = results.config, list[dict[str, Any]]()
    for record in (record for record in results.records if record.topic == "rate"):
        of_limits = {each.case: np.array(each.seconds) for each in record.samples if each.case in (SGEMM, COPY)}
        seconds = {each.length: np.array(each.seconds) for each in record.samples if each.case not in of_limits}
        if SGEMM not in of_limits or not seconds:  # one or all others failed
            continue
        mean = np.mean([values / length for length, values in seconds.items()], axis=0)
        for length, values in seconds.items():
            strict, dense = operation_flops(length, config, record.direction, record.chunk_size or length)
            row = {"direction": record.direction, "length": length, "rounds": len(values), "median": np.median(values)}
            share = quartiles(strict / values / (2 * config.gemm_size**3 / of_limits[SGEMM]))
            row |= dict(zip(RATES["share"], share, strict=True)) | {"dense_share": share[0] * dense / strict}
            row["cost"] = np.median(values / length / mean)
            if COPY in of_limits:
                copied = 2 * config.gemm_size**2 / of_limits[COPY]  # it reads each number and writes it
                moved = operation_numbers(length, config, record.direction) / values
                row |= dict(zip(RATES["copy"], quartiles(moved / copied), strict=True))
            rows.append(row)
    columns = ["direction", "length", "rounds", "median", *RATES["share"], "dense_share", "cost"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)


def shown(root: Path) -> pd.DataFrame:
    """The rows of figures and tables: the value and the text of each quantity, topic, direction, length and case."""
    results, time = Results(root), times(root)
    config, taken, sizes = results.config, results.memory, results.sizes
    base = [compared_with(topic, case) for topic, case in zip(time["topic"], time["case"], strict=True)]
    ratio = time[["ratio", "ratio_low", "ratio_high"]].set_axis(["value", "low", "high"], axis=1)
    told = [f"; {in_quartiles(row, '.2f')}" for row in ratio.to_numpy(float)]
    is_alone = pd.notna(base) | ratio["value"].isna() | ((ratio["low"] == 1) & (ratio["high"] == 1))
    time["text"] = time["median"].map(in_words) + np.where(is_alone, "", told)
    time["rounds"] = time["rounds"].astype(str)  # else 11.0 beside rows that have none
    added = time.assign(**(ratio - 1))[(time["case"] != base) & pd.notna(base) & ratio["value"].notna()]
    over = [in_quartiles(row, ".3f") for row in ratio.loc[added.index].to_numpy(float)]
    in_mib = (taken[["extra", "rise"]].to_numpy(float) / MIB).tolist()
    parts = [
        time.assign(quantity="time", value=time["median"]),
        added.assign(quantity="added", text=over),
        taken.assign(text=[f"{extra:,.1f} MiB ({rise:,.1f})" for extra, rise in in_mib]),
        sizes.assign(text=sizes["value"].map("{:,.0f}".format)),
    ]
    found = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    if found.empty:
        return found.reindex(columns=[*found, "kernel", "position", "N", "what", "name", "positions"])
    looks = [look_of(case, config) for case in found["case"]]
    found[["kernel", "position"]] = pd.DataFrame(looks, found.index, ["kernel", "position"], dtype=object)
    length = found["length"].map("{:,}".format)
    name = found["case"] + (", N = " + length if len(config.position_lengths) > 1 else "")
    return found.assign(N=length, what=found["direction"], name=name, positions=found["case"].str.partition(" ")[2])


def rates(root: Path) -> pd.DataFrame:
    """The same of ``rate``: the value, low and high of each quantity."""
    table = rate(root)
    table = table.assign(what=table["direction"], N=table["length"].map("{:,}".format), line=table["direction"])
    parts = [table.assign(quantity="time", value=table["median"].map(in_words))]
    for quantity, columns in RATES.items():
        if columns[0] in table:
            names = dict(zip(columns, ("value", "low", "high"), strict=False))
            part = table.rename(columns=names).assign(quantity=quantity)
            if quantity == "dense":
                part["line"] += ", counting whole chunks"
            parts.append(part)
    return pd.concat(parts)


def look_of(case: str, config: SpeedConfig) -> tuple[str, str]:
    """The kernel and the position whose look a competitor has."""
    kind, _, features = case.partition(", M=")
    if features == str(config.fewer_features):
        return "favor+", "learned"
    kernel, _, position = kind.partition("@")[0].partition(" ")
    return LOOKS.get(kind, (kernel, position.replace(" ", "-")))


def gains(root: Path) -> pd.DataFrame:
    """What another needs over what ours needs: columns quantity, topic, direction, ours, other, length, value, low."""
    results = Results(root)
    rows = [
        (quantity, *pair, length, *quartiles(gain)[:2])
        for quantity, pair in itertools.product(("time", "memory", "state_bytes"), results.pairs)
        for length, gain in results.gains(*pair, quantity).items()
    ]
    columns = ["quantity", "topic", "direction", "ours", "other", "length", "value", "low"]
    return pd.DataFrame(rows, columns=columns)


def crossings(root: Path) -> pd.DataFrame:
    """From which length on ours, the case, needs less.

    None where it is so from the first measured length, or not at the last; or, of times, where a quarter of the rounds
    at the next length say otherwise.
    """
    rows, keys = [], ["quantity", "topic", "direction", "ours", "other"]
    for place, part in gains(root).groupby(keys, sort=False):
        where = crossover(dict(zip(part["length"], part["value"], strict=True)))
        if where is not None and part[part["length"] > where]["low"].iloc[0] > 1:
            rows.append((*place, where))
    return pd.DataFrame(rows, columns=[*keys[:3], "case", "other", "value"])


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
    passes = config.heads * (1 if direction == FORWARD else 3)
    pairs = length * (chunk + 1) // 2, length * chunk
    strict, dense = (passes * (4 * length * features * width + 2 * each * (features + width)) for each in pairs)
    return strict, dense


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


def in_quartiles(values: Iterable[float], pattern: str, unit: str = "") -> str:
    median, low, high = values
    return with_interval(median, low, high, pattern).replace(" [", f"{unit} [")


def in_words(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def by_round(topic: str, names: Sequence[str], places: Sequence[int] = (-1, -1), value: str = "a / b") -> ReadSample:
    """What ``value`` makes of the seconds a and b of two competitors, round by round; n is b's length over a's.

    ``places`` are those of their lengths among all of the topic, the shortest first.
    """

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        results = Results(root)
        measured, features = lengths_of(topic, results.config), results.config.num_features
        if len(measured) <= max(places) - min(places):
            return None
        lengths = [measured[place] for place in places]
        called = [after(features) if (topic, name) == ("module", AFTER) else name for name in names]
        cases = [(topic, DIRECTIONS[topic][-1], n, name) for n, name in zip(lengths, called, strict=True)]
        failed = [case for case in dict.fromkeys(cases) if case in results.failures]
        lost = tuple(f"{case[3]}, N = {case[2]:,}: {results.failures[case]}" for case in failed)
        known = [results.needs["time", *case] for case in cases if ("time", *case) in results.needs]
        if lost or len(known) < 2:
            return Sample({}, len(lost) or results.config.fewest_rounds, lost, unit_of_sample="rounds")
        rounds = min(map(len, known))
        table = pd.DataFrame({name: seconds[:rounds] for name, seconds in zip("ab", known, strict=True)})
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
        config, table = read_config(comparison), memory(root)
        lengths = sorted(config.memory_lengths or config.lengths)
        ours = table[(table["topic"] == "operation") & (table["case"] == OURS) & (table["rise"] > 0)]
        rises = dict(zip(ours["length"], ours["rise"], strict=True))
        pairs = [(a, b) for a, b in itertools.pairwise(lengths) if {a, b} <= rises.keys()]
        values = {b: math.log(rises[b] / rises[a]) / math.log(b / a) for a, b in pairs}
        return Sample(values, len(lengths) - 1, unit_of_sample="pairs of lengths") if len(lengths) > 1 else None

    return sample


def state_sizes() -> ReadSample:
    """The bytes carried from token to token after each context, over those after the shortest."""

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample:
        results = Results(root)
        first, *others = lengths_of(DECODING, results.config)
        sizes = {n: size for *at, n, case, size in results.sizes.to_numpy() if (at[0], case) == ("state_bytes", AFTER)}
        values = {n: sizes[n] / sizes[first] for n in others if {n, first} <= sizes.keys()}
        return Sample(values, len(others), unit_of_sample="contexts")

    return sample
