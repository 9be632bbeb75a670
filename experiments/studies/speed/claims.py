"""What was claimed about cost, and the measurements of the speed study that decide it."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path

import numpy as np

from experiments.analysis.claims import Claim, ReadSample, Sample
from experiments.analysis.runs import Runs
from experiments.records.schema import Comparison
from experiments.studies.speed.records import MemoryMeasurement, read_config, read_records
from experiments.studies.speed.results import Case, Results
from experiments.studies.speed.study import (
    AFTER,
    ALL_LENGTHS,
    BACKWARD,
    OURS,
    SDPA,
    SOFTMAX,
    STEP,
    TOKEN,
    SpeedConfig,
    after,
)

KATHAROPOULOS = "Katharopoulos et al. 2020 (2006.16236)"
PERFORMER = "Choromanski et al. 2020 (2009.14794)"
ELEUTHER = "EleutherAI 2021, Rotary Embeddings: 1-3 % of the whole"

Cases = Callable[[SpeedConfig], list[Case]]
"""(config) -> the two cases whose times are compared"""


def over_rounds(cases: Cases, quantity: Callable[..., np.ndarray] = np.divide) -> ReadSample:
    """``quantity(first, second)`` of the seconds of two cases, by round; None if there is one case only.

    Where they were not timed in the same rounds their rounds are put beside each other in order, and it is said.
    """

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        results = Results(read_records(root), read_config(comparison))
        wanted = cases(results.config)
        if len(wanted) < 2:
            return None
        failed = dict.fromkeys(case for case in wanted if case in results.failures)
        lost = tuple(f"{case[3]}, N = {case[2]:,}: {results.failures[case]}" for case in failed)
        known = [results.seconds[case] for case in wanted if case in results.seconds]
        if lost or len(known) < 2:
            return Sample({}, len(lost) or results.config.fewest_rounds, lost, unit_of_sample="rounds")
        rounds = min(map(len, known))
        values = quantity(*(seconds[:rounds] for seconds in known))
        lengths = sorted({case[2] for case in wanted})
        notes = [f"N = {' and '.join(f'{n:,}' for n in lengths)}"]
        if len(lengths) > 1 and wanted[0][0] not in ALL_LENGTHS:
            notes.append("the lengths were timed in rounds of their own")
        return Sample(dict(enumerate(values.tolist())), rounds, unit_of_sample="rounds", notes=tuple(notes))

    return sample


def slope(topic: str, name: str) -> ReadSample:
    """Of ln(time) over ln(N) between the two largest lengths."""

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        cases = [(topic, BACKWARD, n, name) for n in sorted(set(read_config(comparison).lengths))[-2:]]
        width = math.log(cases[-1][2] / cases[0][2])
        return over_rounds(lambda config: cases, lambda a, b: np.log(b / a) / width)(root, comparison, runs)

    return sample


def memory_slopes(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
    """Of ln(memory) over ln(N) of our operation between neighbouring lengths."""
    config = read_config(comparison)
    lengths = sorted(config.lengths if config.memory_lengths is None else config.memory_lengths)
    rises = {
        row.length: row.rise
        for row in read_records(root)
        if isinstance(row, MemoryMeasurement) and (row.topic, row.case) == ("operation", OURS) and row.rise
    }
    pairs = [(a, b) for a, b in itertools.pairwise(lengths) if {a, b} <= rises.keys()]
    values = {b: math.log(rises[b] / rises[a]) / math.log(b / a) for a, b in pairs}
    return Sample(values, len(lengths) - 1, unit_of_sample="pairs of lengths") if len(lengths) > 1 else None


def state_sizes(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
    """The bytes carried from token to token after each context, over those after the shortest."""
    config = read_config(comparison)
    contexts = sorted(set(config.contexts))
    table = Results(read_records(root), config).fact_table("state_bytes").query("case == @AFTER")
    sizes = dict(zip(table["length"], table["value"], strict=True))
    known = [context for context in contexts[1:] if {context, contexts[0]} <= sizes.keys()]
    values = {context: sizes[context] / sizes[contexts[0]] for context in known}
    return Sample(values, len(contexts) - 1, unit_of_sample="contexts")


def position_cost(kernel: str, encoding: str, other: str = "none") -> ReadSample:
    """The time of a training step over that of the same kernel with another encoding, less 1, at the longest length."""

    def cases(config: SpeedConfig) -> list[Case]:
        length = max(config.position_lengths)
        return [("positions", STEP, length, f"{kernel} {name}") for name in (encoding, other)]

    return over_rounds(cases, lambda mine, others: mine / others - 1)


def operation(config: SpeedConfig) -> list[Case]:
    return [("operation", BACKWARD, max(config.lengths), name) for name in (SDPA, OURS)]


def module(config: SpeedConfig) -> list[Case]:
    return [("module", BACKWARD, max(config.lengths), name) for name in (SOFTMAX, after(config.num_features))]


def contexts(config: SpeedConfig) -> list[Case]:
    return [("decoding", TOKEN, pick(config.contexts), AFTER) for pick in (max, min)]


SLOPE = "slope of ln(time) over ln(N) between the two largest lengths, forward and backward"
_growth = partial(Claim, family="growth", pattern=".3f", margin=0.02)
_decoding = partial(Claim, family="decoding", margin=0.02)
_faster = partial(
    Claim,
    family="faster",
    published=f"{PERFORMER} and {KATHAROPOULOS}: faster at long lengths; the figures are of other hardware",
    region=(1.0, inf),
    margin=0.1,
    pattern=".2f",
)
_added = partial(Claim, family="positions", pattern="+.1%")

CLAIMS: tuple[Claim, ...] = (
    _growth(
        key="linear-time",
        statement="The time of linear attention grows linearly with the length.",
        published=f"{KATHAROPOULOS} and {PERFORMER}: O(N) (the range around 1 is ours)",
        quantity=f"{SLOPE}, causal operation alone",
        region=(0.9, 1.1),
        sample=slope("rate", OURS),
    ),
    _growth(
        key="quadratic-softmax",
        statement="The time of softmax attention grows quadratically with the length.",
        published=f"{KATHAROPOULOS} and {PERFORMER}: O(N²) (the range around 2 is ours)",
        quantity=f"{SLOPE}, PyTorch's scaled_dot_product_attention",
        region=(1.8, 2.2),
        margin=0.05,
        sample=slope("operation", SDPA),
    ),
    _growth(
        key="linear-memory",
        statement="The memory of linear attention grows no faster than linearly with the length.",
        published=f"{KATHAROPOULOS} and {PERFORMER}: O(N) (up to 1.1 is ours)",
        quantity="slope of ln(peak memory) over ln(N) between neighbouring lengths, causal operation, both passes",
        region=(-inf, 1.1),
        sample=memory_slopes,
    ),
    _decoding(
        key="constant-state",
        statement="Decoding with linear attention needs a state of constant size.",
        published=f"{KATHAROPOULOS} section 3.4: a recurrent network with a matrix as its state",
        quantity="bytes of the state after a context over those after the shortest one",
        region=(0.99, 1.01),
        margin=0.001,
        sample=state_sizes,
        pattern=".4f",
        kind="exact",
    ),
    _decoding(
        key="constant-token",
        statement="Decoding with linear attention, the time of a token does not depend on the context.",
        published=f"{KATHAROPOULOS} section 3.4: constant time for a token (within 10 % is ours)",
        quantity="time of a token after the longest context over that after the shortest, language model",
        region=(0.9, 1.1),
        sample=over_rounds(contexts),
        pattern=".3f",
    ),
    _faster(
        key="operation-faster",
        statement="Linear attention is faster than softmax attention at long lengths: the operation alone.",
        quantity="time of softmax attention over that of linear attention of features that are mapped already, no "
        "rotation, forward and backward, longest length",
        sample=over_rounds(operation),
    ),
    _faster(
        key="module-faster",
        statement="Linear attention is faster than softmax attention at long lengths: the whole module with RoPE after "
        "the FAVOR+ map.",
        quantity="time of a softmax module with RoPE over that of the linear one, projections and map included, "
        "forward and backward, longest length",
        sample=over_rounds(module),
    ),
    *(
        _added(
            key=f"{kernel}-{encoding.replace(' ', '-')}-cost",
            statement=f"RoPE costs at most 3 % of a training step: {kernel}, {encoding}.",
            published=ELEUTHER if kernel == "softmax" else f"none found for {kernel}; {ELEUTHER}",
            quantity=f"time of a training step over that of {kernel} without positions, less 1, longest length",
            region=(-inf, 0.03),
            margin=0.005,
            sample=position_cost(kernel, encoding),
        )
        for kernel, encodings in (
            ("softmax", ("rope",)),
            ("favor+", ("rope before", "rope after")),
            ("elu+1", ("rope before", "rope after")),
        )
        for encoding in encodings
    ),
    _added(
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
    ),
)
