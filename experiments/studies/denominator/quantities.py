"""The quantities of the denominator study that its claims are about."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.analysis.runs import NotRecorded, RunRecord, Runs
from experiments.analysis.samples import ReadSample, Sample, per_seed
from experiments.records.schema import Comparison
from experiments.studies.denominator.measure import (
    ALL_KEYS,
    BEFORE,
    INITIAL_DRAWS,
    INITIAL_HEAD_DIM,
    INITIAL_LENGTH,
    read_initial,
    spike_share,
)
from experiments.training.loop import DIVERGED

__all__ = ["INITIAL_HEAD_DIM", "INITIAL_LENGTH"]

KERNELS = ("favor+", "elu+1", "relu")
DENOMINATORS = 100_000
"""that are looked at in a run, at least: 17 evaluations of 4 windows of 256 tokens in 2 layers of 4 heads"""
LEAST_SHARE = math.log10(0.001)
"""what we call some of them"""
ONE_DENOMINATOR = math.log10(1 + 1 / (0.001 * DENOMINATORS))
"""what one more of them adds to that share, in its logarithm"""
ONE_ROW, ONE_WEIGHT = 1 / INITIAL_LENGTH, 1 / INITIAL_LENGTH**2


def initially(feature_map: str, column: str, pattern: str, divided_by: str = "1") -> ReadSample:
    """A column of initial.csv by draw, of queries that see all keys."""

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        initial = read_initial(root)
        if initial is None:
            return None
        mine = initial[(initial["feature_map"] == feature_map) & (initial["sees"] == ALL_KEYS)]
        values = {int(row["draw"]): float(row[column]) / int(divided_by) for row in mine.to_dict("records")}
        least, most = (format(pick(values.values(), default=0.0), pattern) for pick in (min, max))
        return Sample(values, INITIAL_DRAWS, unit_of_sample="draws", notes=(f"single draws: {least} to {most}",))

    return sample


def failed_more() -> ReadSample:
    """By kernel and seed, 1 where a rotated denominator diverged and the unrotated did not, -1 for the reverse, else 0.

    Of seeds at which both ended. A run that failed for another reason (it was killed, say) tells nothing of the
    variant, and counts as lost.
    """
    pairs = [(_rotated(kernel), _plain(kernel)) for kernel in KERNELS]

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        trained = {variant.name for variant in comparison.variants}
        if not {variant for pair in pairs for variant in pair} <= trained:
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


def larger_gradients(kernel: str) -> ReadSample:
    """By seed, log10 of the largest recorded gradient norm, rotated minus unrotated."""

    def largest(run: RunRecord) -> float:
        return math.log10(max(float(run.curve("train_gradient_norm").max()), 1e-30))

    return per_seed((_rotated(kernel), _plain(kernel)), lambda mine, theirs: largest(mine) - largest(theirs))


def more_spikes(kernel: str) -> ReadSample:
    """By seed, the share of the records that are spikes, rotated minus unrotated."""

    def spikes(run: RunRecord) -> float:
        losses = run.curve("train_bits_per_byte")
        if len(losses) <= BEFORE:
            raise NotRecorded("as many records as a spike is told from")
        return spike_share(losses)

    return per_seed((_rotated(kernel), _plain(kernel)), lambda mine, theirs: spikes(mine) - spikes(theirs))


def one_spike(config: Mapping[str, Any]) -> float:
    """As a share of the records of the training loss that can be spikes."""
    return 1 / max(1, config["steps"] // config["log_every"] - BEFORE)


def nonpositive(kernel: str) -> ReadSample:
    """log10 of the share, which differs by orders of magnitude between seeds; no less than one of ``DENOMINATORS``."""

    def share(run: RunRecord) -> float:
        in_training = run.curve("validation_nonpositive_denominators").drop(0, errors="ignore")
        if in_training.empty:
            raise NotRecorded("an evaluation after the start")
        return math.log10(max(float(in_training.mean()), 1 / DENOMINATORS))

    return per_seed((_rotated(kernel),), share)


def _plain(kernel: str) -> str:
    return f"{kernel}-rope-after"


def _rotated(kernel: str) -> str:
    return f"{kernel}-rope-after@denominator=rotated"
