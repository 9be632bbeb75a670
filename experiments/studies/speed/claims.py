"""What was claimed about cost, and the measurements of the speed experiment that decide it."""

import itertools
import math
from collections.abc import Callable
from math import inf
from pathlib import Path

import numpy as np

from experiments.analysis.claims import Claim, ReadSample, Sample
from experiments.analysis.runs import Runs
from experiments.records.schema import Comparison
from experiments.studies.speed.records import Record, read_config, read_records, samples
from experiments.studies.speed.settings import AFTER, BACKWARD, OURS, SDPA, SOFTMAX, STEP, TOKEN, SpeedConfig, after

KATHAROPOULOS = "Katharopoulos et al. 2020 (2006.16236)"
PERFORMER = "Choromanski et al. 2020 (2009.14794)"
ELEUTHER = "EleutherAI 2021, Rotary Embeddings: 1-3 % of the whole"

Case = tuple[str, str, str, int]
"""topic, direction, competitor, length"""
Quantity = Callable[..., np.ndarray]


def over_rounds(cases: Callable[[SpeedConfig], list[Case]], quantity: Quantity) -> ReadSample:
    """``quantity(*seconds)`` by round, of the seconds of each of ``cases(config)``.

    Where they were not timed in the same rounds their rounds are put beside each other in order, and it is said.
    """

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        config = read_config(comparison)
        records = read_records(root)
        wanted = cases(config)
        lost = tuple(dict.fromkeys(why for case in wanted for why in _failures(records, case)))
        if lost:
            return Sample({}, len(lost), lost, unit_of_sample="rounds")
        found = [_seconds(records, case) for case in wanted]
        known = [each for each in found if each is not None]
        if len(known) < len(wanted):
            return Sample({}, config.fewest_rounds, unit_of_sample="rounds")
        rounds = min(len(seconds) for _, seconds in known)
        values = quantity(*(seconds[:rounds] for _, seconds in known))
        apart = len({id(record) for record, _ in known}) > 1
        lengths = " and ".join(f"{n:,}" for n in sorted({length for *_, length in wanted}))
        notes = [f"N = {lengths}"] + ["the lengths were timed in rounds of their own"] * apart
        by_round = {index: float(value) for index, value in enumerate(values)}
        return Sample(by_round, rounds, unit_of_sample="rounds", notes=tuple(notes))

    return sample


def _timed(records: list[Record], topic: str, direction: str) -> list[Record]:
    return [row for row in records if (row["kind"], row["topic"], row["direction"]) == ("time", topic, direction)]


def _seconds(records: list[Record], case: Case) -> tuple[Record, np.ndarray] | None:
    topic, direction, name, length = case
    for record in _timed(records, topic, direction):
        seconds = samples(record).get((name, length))
        if seconds is not None:
            return record, seconds
    return None


def _failures(records: list[Record], case: Case) -> list[str]:
    topic, direction, name, length = case
    return [
        f"{name}, N = {length:,}: {each['reason']}"
        for record in _timed(records, topic, direction)
        for each in record.get("failures", [])
        if (each["case"], each["length"]) == (name, length)
    ]


def _longest(
    topic: str, direction: str, name: str, lengths: str, count: int = 2
) -> Callable[[SpeedConfig], list[Case]]:
    """A competitor at its largest lengths, ascending."""

    def cases(config: SpeedConfig) -> list[Case]:
        return [(topic, direction, name, n) for n in sorted(getattr(config, lengths))[-count:]]

    return cases


def _slope(topic: str, name: str) -> ReadSample:
    """Of ln(time) over ln(N) between the two largest lengths."""

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        lengths = sorted(set(read_config(comparison).lengths))[-2:]
        if len(lengths) < 2:
            return None
        width = math.log(lengths[1] / lengths[0])
        cases = _longest(topic, BACKWARD, name, "lengths")
        return over_rounds(cases, lambda a, b: np.log(b / a) / width)(root, comparison, runs)

    return sample


def memory_slopes(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
    """Of ln(memory) over ln(N) of our operation between neighbouring lengths."""
    config = read_config(comparison)
    lengths = sorted(config.lengths if config.memory_lengths is None else config.memory_lengths)
    rows = [row for row in read_records(root) if (row["kind"], row["topic"]) == ("memory", "operation")]
    rises = {row["length"]: row["rise"] for row in rows if row["case"] == OURS and row.get("rise", 0) > 0}
    pairs = [(a, b) for a, b in itertools.pairwise(lengths) if {a, b} <= rises.keys()]
    values = {b: math.log(rises[b] / rises[a]) / math.log(b / a) for a, b in pairs}
    return Sample(values, len(lengths) - 1, unit_of_sample="pairs of lengths") if len(lengths) > 1 else None


def state_sizes(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
    """The bytes carried from token to token after each context, over those after the shortest."""
    contexts = sorted(set(read_config(comparison).contexts))
    sizes = {
        sample["length"]: sample["state_bytes"]
        for record in _timed(read_records(root), "decoding", TOKEN)
        for sample in record["samples"]
        if sample["case"] == AFTER and sample.get("state_bytes", 0) > 0
    }
    known = [context for context in contexts[1:] if {context, contexts[0]} <= sizes.keys()]
    values = {context: sizes[context] / sizes[contexts[0]] for context in known}
    return Sample(values, len(contexts) - 1, unit_of_sample="contexts")


def position_cost(kernel: str, encoding: str, other: str = "none") -> ReadSample:
    """The time of a training step over that of the same kernel with another encoding, less 1, at the longest length."""

    def cases(config: SpeedConfig) -> list[Case]:
        length = max(config.position_lengths)
        return [("positions", STEP, f"{kernel} {name}", length) for name in (encoding, other)]

    return over_rounds(cases, lambda mine, others: mine / others - 1)


def _growth() -> list[Claim]:
    slope = "slope of ln(time) over ln(N) between the two largest lengths, forward and backward"
    return [
        Claim(
            key="linear-time",
            statement="The time of linear attention grows linearly with the length.",
            published=f"{KATHAROPOULOS} and {PERFORMER}: O(N) (the range around 1 is ours)",
            quantity=f"{slope}, causal operation alone",
            region=(0.9, 1.1),
            margin=0.02,
            sample=_slope("rate", OURS),
            pattern=".3f",
            family="growth",
        ),
        Claim(
            key="quadratic-softmax",
            statement="The time of softmax attention grows quadratically with the length.",
            published=f"{KATHAROPOULOS} and {PERFORMER}: O(N²) (the range around 2 is ours)",
            quantity=f"{slope}, PyTorch's scaled_dot_product_attention",
            region=(1.8, 2.2),
            margin=0.05,
            sample=_slope("operation", SDPA),
            pattern=".3f",
            family="growth",
        ),
        Claim(
            key="linear-memory",
            statement="The memory of linear attention grows no faster than linearly with the length.",
            published=f"{KATHAROPOULOS} and {PERFORMER}: O(N) (up to 1.1 is ours)",
            quantity="slope of ln(peak memory) over ln(N) between neighbouring lengths, causal operation, both passes",
            region=(-inf, 1.1),
            margin=0.02,
            sample=memory_slopes,
            pattern=".3f",
            family="growth",
        ),
        Claim(
            key="constant-state",
            statement="Decoding with linear attention needs a state of constant size.",
            published=f"{KATHAROPOULOS} section 3.4: a recurrent network with a matrix as its state",
            quantity="bytes of the state after a context over those after the shortest one",
            region=(0.99, 1.01),
            margin=0.001,
            sample=state_sizes,
            pattern=".4f",
            family="decoding",
            kind="exact",
        ),
        Claim(
            key="constant-token",
            statement="Decoding with linear attention, the time of a token does not depend on the context.",
            published=f"{KATHAROPOULOS} section 3.4: constant time for a token (within 10 % is ours)",
            quantity="time of a token after the longest context over that after the shortest, language model",
            region=(0.9, 1.1),
            margin=0.02,
            sample=over_rounds(
                lambda config: [("decoding", TOKEN, AFTER, pick(config.contexts)) for pick in (max, min)],
                lambda longest, shortest: longest / shortest,
            ),
            pattern=".3f",
            family="decoding",
        ),
    ]


def _faster() -> list[Claim]:
    def module(config: SpeedConfig) -> list[Case]:
        names = (SOFTMAX, after(config.num_features))
        return [("module", BACKWARD, name, max(config.lengths)) for name in names]

    def operation(config: SpeedConfig) -> list[Case]:
        return [("operation", BACKWARD, name, max(config.lengths)) for name in (SDPA, OURS)]

    return [
        Claim(
            key=f"{key}-faster",
            statement=f"Linear attention is faster than softmax attention at long lengths: {what}.",
            published=f"{PERFORMER} and {KATHAROPOULOS}: faster at long lengths; the figures are of other hardware",
            quantity=f"time of {quantity}, forward and backward, longest length",
            region=(1.0, inf),
            margin=0.1,
            sample=over_rounds(cases, lambda softmax, ours: softmax / ours),
            pattern=".2f",
            family="faster",
        )
        for key, what, quantity, cases in (
            (
                "operation",
                "the operation alone",
                "softmax attention over that of linear attention of features that are mapped already, no rotation",
                operation,
            ),
            (
                "module",
                "the whole module with RoPE after the FAVOR+ map",
                "a softmax module with RoPE over that of the linear one, projections and map included",
                module,
            ),
        )
    ]


def _positions() -> list[Claim]:
    quantity = "time of a training step over that of {} without positions, less 1, longest length"
    cheap = [
        Claim(
            key=f"{kernel}-{encoding.replace(' ', '-')}-cost",
            statement=f"RoPE costs at most 3 % of a training step: {kernel}, {encoding}.",
            published=ELEUTHER if kernel == "softmax" else f"none found for {kernel}; {ELEUTHER}",
            quantity=quantity.format(kernel),
            region=(-inf, 0.03),
            margin=0.005,
            sample=position_cost(kernel, encoding),
            pattern="+.1%",
            family="positions",
        )
        for kernel, encoding in (
            ("softmax", "rope"),
            ("favor+", "rope before"),
            ("favor+", "rope after"),
            ("elu+1", "rope before"),
            ("elu+1", "rope after"),
        )
    ]
    slow = Claim(
        key="alibi-slow",
        statement="Relative position embeddings that are added to the scores are slow: with ALiBi a softmax model's "
        "step takes longer than with RoPE.",
        published="none found with a figure: it is said of such embeddings in general, and Press et al. 2021 "
        "(2108.12409) offer ALiBi as the more efficient one. T5's and Shaw's are not measured here",
        quantity="time of a training step with ALiBi, as implemented here (an N x N matrix a head), over that with "
        "RoPE, less 1, longest length",
        region=(0.0, inf),
        margin=0.02,
        sample=position_cost("softmax", "alibi", "rope"),
        pattern="+.1%",
        family="positions",
    )
    return [*cheap, slow]


CLAIMS: tuple[Claim, ...] = (*_growth(), *_faster(), *_positions())
