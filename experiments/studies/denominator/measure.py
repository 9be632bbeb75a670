"""Eq. 19 before any training (signs, row sums and denominators of random queries and keys), and what claims compare."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from experiments.judge.curves import NotRecorded, RunRecord
from experiments.judge.runs import Runs
from experiments.judge.samples import ReadSample, Sample, per_seed
from experiments.judge.statistics import estimate, run_states
from experiments.records.schema import Comparison
from experiments.show.rows import Rows
from experiments.studies.tables import Table
from experiments.train.objectives import NextToken
from experiments.train.steps import DIVERGED
from linear_rope import EluPlusOne, FavorPlus, apply_rope, linear_attention
from linear_rope.features import FeatureMap

INITIAL_LENGTH, INITIAL_HEAD_DIM, INITIAL_FEATURES = 1024, 64, 256
INITIAL_DRAWS = 20
ALL_KEYS, CAUSAL = "all keys", "causal"
BEFORE = 10
"""records whose mean a record is compared with"""
HEIGHT = 0.5
"""bits per byte above that mean"""
KERNELS = ("favor+", "elu+1", "relu")
DENOMINATORS = 100_000
"""that are looked at in a run, at least: 17 evaluations of 4 windows of 256 tokens in 2 layers of 4 heads"""
LEAST_SHARE = math.log10(0.001)
"""what we call some of them"""
ONE_DENOMINATOR = math.log10(1 + 1 / (0.001 * DENOMINATORS))
"""what one more of them adds to that share, in its logarithm"""
ONE_ROW, ONE_WEIGHT = 1 / INITIAL_LENGTH, 1 / INITIAL_LENGTH**2

INITIAL = Table(
    "initial",
    {"feature_map": str, "sees": str, "draw": int},
    {"negative_weights": float, "smallest_row_sum": float, "largest_row_sum": float}
    | {"rotated_denominators_not_above_zero": int},
)


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write initial.csv; returns nothing, as all of it can be measured."""
    INITIAL.write(root, initial_table())
    return []


def spike_share(losses: "pd.Series[float]") -> float:
    """The share of the records that lie at least ``HEIGHT`` above the mean of the ``BEFORE`` records before them.

    Args:
        losses: training bits per byte by step, ascending; more than ``BEFORE`` of them.
    """
    before = losses.rolling(BEFORE).mean().shift(1)
    return float((losses - before >= HEIGHT)[before.notna()].mean())


def initial_table(draws: int = INITIAL_DRAWS) -> pd.DataFrame:
    """Eq. 19 on N(0, 1) queries and keys, one head: a row per feature map, mask and draw of inputs and features."""
    rows = []
    for draw_number in range(draws):
        generator = torch.Generator().manual_seed(draw_number)
        q, k = torch.randn(2, 1, 1, INITIAL_LENGTH, INITIAL_HEAD_DIM, generator=generator).double()
        maps: dict[str, FeatureMap] = {
            "favor+": FavorPlus(INITIAL_HEAD_DIM, INITIAL_FEATURES, seed=draw_number),
            "elu+1": EluPlusOne(),
        }
        for name, feature_map in maps.items():
            for sees in (ALL_KEYS, CAUSAL):
                rows.append((name, sees, draw_number, *_signs(feature_map, q, k, causal=sees == CAUSAL)))
    return pd.DataFrame.from_records(rows, columns=INITIAL.columns)


def _signs(feature_map: FeatureMap, q: Tensor, k: Tensor, *, causal: bool) -> tuple[float, float, float, int]:
    """The values of ``INITIAL``."""
    identity = torch.eye(q.shape[-2], dtype=q.dtype).expand(1, 1, -1, -1)
    weights = linear_attention(
        q, k, identity, feature_map=feature_map, rope="after", causal=causal, implementation="reference"
    )
    visible = torch.ones_like(weights, dtype=torch.bool)
    visible = visible.tril() if causal else visible
    queries, keys = feature_map.queries(q), feature_map.keys(k)
    rotated_q, rotated_k = (apply_rope(x.values, torch.arange(q.shape[-2])) for x in (queries, keys))
    if keys.log_scale is not None:
        # A query's own scale is positive, so it does not change a sign; a key's weighs it against the others.
        rotated_k = rotated_k * (keys.log_scale - keys.log_scale.amax()).exp()
    denominators = (rotated_q @ rotated_k.mT * visible).sum(-1)
    row_sums = weights.sum(-1)
    negative = ((weights < 0) & visible).sum().item() / visible.sum().item()
    return negative, row_sums.min().item(), row_sums.max().item(), int((denominators <= 0).sum())


def initially(pattern: str, **words: Any) -> ReadSample:
    """A column of initial.csv, with a note on how far single draws lie apart."""
    read = INITIAL.samples(planned=INITIAL_DRAWS)(**words)

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        found = read(root, comparison, runs)
        if found is None:
            return None
        least, most = (format(pick(found.values.values(), default=0.0), pattern) for pick in (min, max))
        return replace(found, notes=(f"single draws: {least} to {most}",))

    return sample


def failed_more() -> ReadSample:
    """By kernel and seed, 1 where a rotated denominator diverged and the unrotated did not, -1 for the reverse, else 0.

    Of seeds at which both ended. A run that failed for another reason (it was killed, say) tells nothing of the
    variant, and counts as lost.
    """
    pairs = [_rotated_and_plain(kernel) for kernel in KERNELS]

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        if not {variant for pair in pairs for variant in pair} <= {variant.name for variant in comparison.variants}:
            return None
        places = list(itertools.product(pairs, comparison.seeds))
        values, lost = {}, []
        for place, (pair, seed) in enumerate(places):
            ended = [runs.fates[name, seed] for name in pair]
            diverged = [state == "failed" and reason.startswith(DIVERGED) for state, reason in ended]
            if all(state == "done" or gone for (state, _), gone in zip(ended, diverged, strict=True)):
                values[place] = float(diverged[0]) - float(diverged[1])
            elif any(state == "failed" for state, _ in ended):
                lost.append(f"{pair[0]}, seed {seed} failed: {'; '.join(reason for _, reason in ended if reason)}")
        return Sample(values, len(places), tuple(lost), unit_of_sample="pairs of runs")

    return sample


def larger_gradients(kernel: str) -> ReadSample:
    """By seed, log10 of the largest recorded gradient norm, rotated minus unrotated."""

    def largest(run: RunRecord) -> float:
        return math.log10(max(float(run.curve("train_gradient_norm").max()), 1e-30))

    return per_seed(_rotated_and_plain(kernel), lambda mine, theirs: largest(mine) - largest(theirs))


def more_spikes(kernel: str) -> ReadSample:
    """By seed, the share of the records that are spikes, rotated minus unrotated."""

    def spikes(run: RunRecord) -> float:
        losses = run.curve("train_bits_per_byte")
        if len(losses) <= BEFORE:
            raise NotRecorded("as many records as a spike is told from")
        return spike_share(losses)

    return per_seed(_rotated_and_plain(kernel), lambda mine, theirs: spikes(mine) - spikes(theirs))


def one_spike(comparison: Comparison) -> float:
    """As a share of the records of the training loss that can be spikes."""
    config = comparison.config
    return 1 / max(1, config["steps"] // config["log_every"] - BEFORE)


def nonpositive(kernel: str) -> ReadSample:
    """log10 of the share, which differs by orders of magnitude between seeds; no less than one of ``DENOMINATORS``."""

    def share(run: RunRecord) -> float:
        in_training = run.curve("validation_nonpositive_denominators").drop(0, errors="ignore")
        if in_training.empty:
            raise NotRecorded("an evaluation after the start")
        return math.log10(max(float(in_training.mean()), 1 / DENOMINATORS))

    return per_seed(_rotated_and_plain(kernel)[:1], share)


def _rotated_and_plain(kernel: str) -> tuple[str, str]:
    return f"{kernel}-rope-after@denominator=rotated", f"{kernel}-rope-after"


def stability(shown: Rows) -> pd.DataFrame:
    """The table of failures and spikes: a row of strings per variant."""
    comparison, curves = shown.comparison, shown.curves
    states = run_states(shown.root, comparison, curves)
    losses = curves[(curves["split"] == "train") & (curves["metric"] == "bits_per_byte")]
    by_run = {run: rows.set_index("step")["value"].sort_index() for run, rows in losses.groupby(["variant", "seed"])}
    rows = []
    for variant in comparison.variants:
        mine = states[states["variant"] == variant.name]
        done = [(variant.name, seed) for seed in mine[mine["state"] == "done"]["seed"]]
        shares = [spike_share(by_run[run]) for run in done if run in by_run and len(by_run[run]) > BEFORE]
        spikes = f"{estimate(shares).mean:.2%} (worst seed {max(shares):.2%})" if shares else "-"
        failed = str((mine["state"] == "failed").sum())
        rows.append((variant.name, str(len(mine)), failed, spikes))
    return pd.DataFrame(rows, columns=["variant", "runs", "failed", "records that are spikes"])
