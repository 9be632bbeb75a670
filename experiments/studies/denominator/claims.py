"""What was claimed about eq. 19's denominator, and the quantities that decide it."""

import math
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from experiments.analysis.claims import BITS_PER_BYTE, Claim, ReadSample, Sample
from experiments.analysis.runs import NotRecorded, RunRecord, Runs
from experiments.analysis.samples import paired, per_seed
from experiments.records.schema import Comparison
from experiments.studies.denominator.initial import (
    ALL_KEYS,
    INITIAL_DRAWS,
    INITIAL_HEAD_DIM,
    INITIAL_LENGTH,
    read_initial,
)
from experiments.studies.denominator.spikes import BEFORE, spike_share
from experiments.training.loop import DIVERGED

KERNELS = ("favor+", "elu+1", "relu")


class _Variants(NamedTuple):
    """Of a kernel with RoPE after its map, by denominator."""

    plain: str
    rotated: str
    without: str


def _variants(kernel: str) -> _Variants:
    plain = f"{kernel}-rope-after"
    return _Variants(plain, f"{plain}@denominator=rotated", f"{plain}@denominator=none")


def _initially(feature_map: str, column: str, pattern: str, divided_by: int = 1) -> ReadSample:
    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        initial = read_initial(root)
        if initial is None:
            return None
        mine = initial[(initial["feature_map"] == feature_map) & (initial["sees"] == ALL_KEYS)]
        values = {int(row["draw"]): float(row[column]) / divided_by for row in mine.to_dict("records")}
        least, most = (format(pick(values.values(), default=0.0), pattern) for pick in (min, max))
        return Sample(values, INITIAL_DRAWS, unit_of_sample="draws", notes=(f"single draws: {least} to {most}",))

    return sample


def _failed_more(pairs: Sequence[tuple[str, str]]) -> ReadSample:
    """1 where the first variant of a pair diverged and the other did not, -1 the other way round, else 0, for each
    seed.

    Of seeds at which both ended. A run that failed for another reason (it was killed, say) tells nothing of the
    variant,
    and counts as lost.
    """

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        if not {variant for pair in pairs for variant in pair} <= {variant.name for variant in comparison.variants}:
            return None
        places = [(pair, seed) for pair in pairs for seed in comparison.seeds]
        values, lost = {}, []
        for number, (pair, seed) in enumerate(places):
            ended = [runs.fates[name, seed] for name in pair]
            diverged = [state == "failed" and reason.startswith(DIVERGED) for state, reason in ended]
            if all(state == "done" or gone for (state, _), gone in zip(ended, diverged, strict=True)):
                values[number] = float(diverged[0]) - float(diverged[1])
            elif any(state == "failed" for state, _ in ended):
                lost.append(f"{pair[0]}, seed {seed} failed: {'; '.join(reason for _, reason in ended if reason)}")
        return Sample(values, len(places), tuple(lost), unit_of_sample="pairs of runs")

    return sample


def _spikes(variant: str, other: str) -> ReadSample:
    return per_seed((variant, other), lambda mine, theirs: _spikes_of(mine) - _spikes_of(theirs))


def _one_spike(config: Mapping[str, Any]) -> float:
    """As a share of the records of the training loss that can be spikes."""
    return 1 / max(1, config["steps"] // config["log_every"] - BEFORE)


def _spikes_of(run: RunRecord) -> float:
    losses = run.curve("train_bits_per_byte")
    if len(losses) <= BEFORE:
        raise NotRecorded("as many records as a spike is told from")
    return spike_share(losses)


def _largest(run: RunRecord) -> float:
    """log10 of the largest recorded gradient norm."""
    return math.log10(max(float(run.curve("train_gradient_norm").max()), 1e-30))


def _nonpositive(variant: str) -> ReadSample:
    """log10 of the share, which differs by orders of magnitude between seeds; no less than one of ``DENOMINATORS``."""

    def share(run: RunRecord) -> float:
        in_training = run.curve("validation_nonpositive_denominators").drop(0, errors="ignore")
        if in_training.empty:
            raise NotRecorded("an evaluation after the start")
        return math.log10(max(float(in_training.mean()), 1 / DENOMINATORS))

    return per_seed((variant,), share)


DENOMINATORS = 100_000
"""that are looked at in a run, at least: 17 evaluations of 4 windows of 256 tokens in 2 layers of 4 heads"""

LEAST_SHARE = 0.001
"""of the denominators: what we call some of them"""

ROFORMER = 'RoFormer (2104.09864) eq. 19: the denominator is kept "to avoid the risk of dividing zero"; no measurement'
SANA = 'SANA-Video (2509.24695): no RoPE in the denominator "ensures training stability" (relu, video, not causal)'
INITIAL_DATA = "N(0, 1) inputs"
INITIAL_SIZE = f"one head of width {INITIAL_HEAD_DIM}, length {INITIAL_LENGTH:,}, no training"
EARLIER = "none found; we knew one draw"


def _initial_claims() -> list[Claim]:
    given = "For N(0, 1) queries and keys,"
    weights, sums = "share of the weights that are negative, no mask", "row sum of the weights, no mask"
    rows = "share of rows whose rotated denominator is not above zero, no mask"
    of_rows: dict[str, Any] = {
        "column": "rotated_denominators_not_above_zero",
        "divided_by": INITIAL_LENGTH,
        "resolution": 1 / INITIAL_LENGTH,
        "limits": (0.0, 1.0),
    }
    of_weights: dict[str, Any] = {
        "column": "negative_weights",
        "pattern": ".1%",
        "resolution": 1 / INITIAL_LENGTH**2,
        "limits": (0.0, 1.0),
    }

    def claim(
        key: str,
        feature_map: str,
        statement: str,
        earlier: str,
        quantity: str,
        region: tuple[float, float],
        margin: float,
        *,
        column: str,
        pattern: str = "+.2f",
        divided_by: int = 1,
        **others: Any,
    ) -> Claim:
        return Claim(
            key=f"initial-{key}-{feature_map}",
            statement=f"{given} {statement}",
            published=f"{EARLIER}: {earlier}",
            quantity=quantity,
            region=region,
            margin=margin,
            sample=_initially(feature_map, column, pattern, divided_by),
            pattern=pattern,
            family="initial",
            data=INITIAL_DATA,
            size=INITIAL_SIZE,
            **others,
        )

    return [
        claim(
            "negative",
            "favor+",
            "about 30 % of eq. 19's weights are negative with FAVOR+ (M = 256, D = 64).",
            "29.8 %. RoFormer (2104.09864) says that the numerator could contain negative terms",
            weights,
            (0.28, 0.32),
            0.005,
            **of_weights,
        ),
        claim(
            "negative",
            "elu+1",
            "about 3.4 % of the weights are negative with elu+1.",
            "3.4 %",
            weights,
            (0.029, 0.039),
            0.001,
            **of_weights,
        ),
        claim(
            "rotated",
            "favor+",
            "a rotated FAVOR+ denominator is not above zero in a tenth of rows.",
            f"112 of 1024. {ROFORMER}",
            rows,
            (0.05, 0.15),
            0.01,
            pattern=".1%",
            **of_rows,
        ),
        claim(
            "rotated",
            "elu+1",
            "a rotated elu+1 denominator is above zero.",
            "none of 1024",
            rows,
            (-inf, 0.001),
            0.0001,
            pattern=".2%",
            **of_rows,
        ),
        claim(
            "sums",
            "favor+",
            "some row sums of eq. 19's weights are below zero with FAVOR+.",
            "-0.61, the smallest",
            f"smallest {sums}",
            (-inf, 0),
            0.1,
            column="smallest_row_sum",
        ),
        claim(
            "largest-sums",
            "favor+",
            "some row sums of eq. 19's weights are above one with FAVOR+.",
            "1.41, the largest",
            f"largest {sums}",
            (1, inf),
            0.1,
            column="largest_row_sum",
        ),
        claim(
            "sums",
            "elu+1",
            "all row sums of the weights are above zero with elu+1.",
            "0.15, the smallest",
            f"smallest {sums}",
            (0, inf),
            0.01,
            column="smallest_row_sum",
        ),
        claim(
            "largest-sums",
            "elu+1",
            "all row sums of the weights are below one with elu+1.",
            "0.46, the largest",
            f"largest {sums}",
            (-inf, 1),
            0.01,
            column="largest_row_sum",
        ),
    ]


def _claims() -> tuple[Claim, ...]:
    trained = [
        Claim(
            key="fails",
            statement="A rotated denominator makes training fail.",
            published=f"{ROFORMER}. {SANA}",
            quantity="runs that diverged (a loss or gradient that is not finite), rotated minus unrotated, of all "
            "kernels and seeds",
            region=(0, inf),
            margin=0.1,
            sample=_failed_more([(variants.rotated, variants.plain) for variants in map(_variants, KERNELS)]),
            pattern="+.2f",
            family="failures",
            kind="count",
        )
    ]
    for kernel in KERNELS:
        published = SANA if kernel == "relu" else ROFORMER
        plain, rotated, without = _variants(kernel)
        trained += [
            Claim(
                key=f"{kernel}-gradients",
                statement=f"With {kernel}, a rotated denominator makes gradients larger.",
                published=f"none found of gradients; {published}",
                quantity="log10 of the largest gradient norm before clipping, rotated minus unrotated",
                region=(0, inf),
                margin=0.05,
                sample=per_seed((rotated, plain), lambda mine, theirs: _largest(mine) - _largest(theirs)),
                pattern="+.2f",
                family="stability",
            ),
            Claim(
                key=f"{kernel}-spikes",
                statement=f"With {kernel}, a rotated denominator makes the training loss spike.",
                published=published,
                quantity="share of the records of the training loss that are spikes, rotated minus unrotated",
                region=(0, inf),
                margin=0.01,
                sample=_spikes(rotated, plain),
                pattern="+.1%",
                family="stability",
                resolution_of=_one_spike,
            ),
            Claim(
                key=f"{kernel}-nonpositive",
                statement=f"With {kernel}, more than one in a thousand rotated denominators are zero or negative in "
                "training.",
                published=f"{published} (one in a thousand is ours)",
                quantity="log10 of the share of denominators that are not above zero, mean over the evaluations after "
                "the start",
                region=(math.log10(LEAST_SHARE), inf),
                margin=0.1,
                sample=_nonpositive(rotated),
                pattern="+.2f",
                family="stability",
                resolution=math.log10(1 + 1 / (LEAST_SHARE * DENOMINATORS)),
            ),
            Claim(
                key=f"{kernel}-loss",
                statement=f"With {kernel}, the unrotated denominator gives a lower loss than a rotated one.",
                published=f"none found of the loss; {published}",
                quantity=f"test loss, {plain} minus the same with a rotated denominator, bits per byte",
                region=(-inf, 0),
                margin=0.01,
                sample=paired(plain, rotated),
                family="loss",
                resolution=BITS_PER_BYTE,
            ),
            Claim(
                key=f"{kernel}-none",
                statement=f"With {kernel}, a denominator is needed: without one the loss is higher.",
                published="none found for language models; flash-linear-attention's RetNet does without",
                quantity=f"test loss, {plain} minus the same without a denominator, bits per byte",
                region=(-inf, 0),
                margin=0.01,
                sample=paired(plain, without),
                family="loss",
                resolution=BITS_PER_BYTE,
            ),
        ]
    return (*_initial_claims(), *trained)


CLAIMS = _claims()
