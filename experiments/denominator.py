"""Is the unrotated denominator of RoFormer's eq. 19 needed for stability, and what do its weights look like?

python -m experiments run denominator
"""

import math
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from experiments.cells import Cell, Cells, NotRecorded
from experiments.claims import BITS_PER_BYTE, Claim, ReadSample, Sample
from experiments.csv_files import TEXT, number, read_csv, to_csv, whole
from experiments.plots import FigureEntry, TableEntry, draw
from experiments.record import write_atomically
from experiments.samples import paired, per_seed
from experiments.settings_plots import curves_by_setting, final_by_setting
from experiments.spikes import BEFORE, HEIGHT, spike_share
from experiments.stats import cell_states, cell_values, estimate
from experiments.tasks.language_model import ByteLanguageModel
from experiments.train import DIVERGED
from linear_rope import EluPlusOne, FavorPlus, apply_rope, linear_attention
from linear_rope.features import FeatureMap

QUESTION = (
    "RoFormer's eq. 19 rotates the mapped queries and keys in the numerator only: a rotated denominator could be zero. "
    "The price is weights that can be negative and need not sum to one. Is the unrotated denominator needed? Linear "
    "attention with RoPE after its map is trained with the denominator unrotated (eq. 19), rotated (the sum of the "
    "numerator's own weights) and without one."
)
METHOD = (
    "Every arm is trained from equal weights on equal batches. At every evaluation the attention weights of all layers "
    "and heads are worked out in full on some validation windows: the share of negative weights, the smallest and "
    "largest row sum, the share of denominators that are zero or below. A spike is a recorded training loss that lies "
    f"at least {HEIGHT} bits per byte above the mean of the {BEFORE} records before it. A loss or gradient that is not "
    "finite ends the cell, and it counts as diverged. Gradients are clipped at the norm that the configuration says, "
    "and a query whose denominator is exactly zero gets zeros. Before any training the same is measured for random "
    "inputs."
)
NOT_SHOWN = (
    "Longer training, larger models, other learning rates (one serves all arms, unless there is a table of them) and "
    "lower precision, all of which can make an unstable arm fail or a stable one look worse than it is; clipped "
    "gradients hide much of it. SANA-Video's setting (video, no causal mask) is another. Denominators are looked at "
    "on a few windows at each evaluation, so a zero crossing between two of them is not seen."
)

KERNELS = ("favor+", "elu+1", "relu")
VARIANTS = tuple(
    f"{kernel}-rope-after{setting}"
    for kernel in KERNELS
    for setting in ("", "@denominator=rotated", "@denominator=none")
)

INITIAL_LENGTH, INITIAL_HEAD_DIM, INITIAL_FEATURES = 1024, 64, 256
INITIAL_DRAWS = 20
ALL_KEYS, CAUSAL = "all keys", "causal"
COLUMNS = {
    "feature_map": TEXT,
    "sees": TEXT,
    "draw": whole(0, 10**6),
    "negative_weights": number(0),
    "smallest_row_sum": number(),
    "largest_row_sum": number(),
    "rotated_denominators_not_above_zero": whole(0, INITIAL_LENGTH),
}


def measure(root: Path, comparison: dict[str, Any], task: ByteLanguageModel) -> list[str]:
    """Write initial.csv; returns nothing, as all of it can be measured."""
    write_atomically(root / "initial.csv", to_csv(initial_table(), "%.9g"))
    return []


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
                rows.append((name, sees, draw_number, *_health(feature_map, q, k, causal=sees == CAUSAL)))
    return pd.DataFrame.from_records(rows, columns=list(COLUMNS))


def figures(
    root: Path, output: Path, comparison: dict[str, Any], curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    entries: list[FigureEntry | TableEntry] = []
    initial = _read(root)
    if initial is not None:
        entries.append(TableEntry("Before training", _initial_shown(initial), _INITIAL))
    directory = output / "figures"
    states = cell_states(root, comparison, curves)
    done = states[states["state"] == "done"]
    values = cell_values(curves, comparison, set(zip(done["variant"], done["seed"], strict=True)))
    if len(done):
        entries.append(draw(directory, _FINAL, final_by_setting, values, summary, comparison))
    for stem, (metric, quantity, title, caption) in _HEALTH.items():
        if (curves["metric"] == metric).any():
            entry = FigureEntry(stem, title, caption)
            entries.append(draw(directory, entry, curves_by_setting, curves, summary, comparison, metric, quantity))
    entries.append(TableEntry("Failures and spikes", stability_table(root, comparison, curves), _STABILITY))
    return entries


def stability_table(root: Path, comparison: dict[str, Any], curves: pd.DataFrame) -> pd.DataFrame:
    """A row of strings per arm: cells, failures, spikes in the training loss."""
    states = cell_states(root, comparison, curves)
    rows = []
    for variant in comparison["variants"]:
        mine = states[states["variant"] == variant["name"]]
        shares = []
        for seed in mine[mine["state"] == "done"]["seed"]:
            losses = _training_losses(curves, variant["name"], seed)
            if len(losses) > BEFORE:
                shares.append(spike_share(losses))
        found = estimate(shares)
        rows.append(
            {
                "arm": variant["name"],
                "cells": str(len(mine)),
                "failed": str((mine["state"] == "failed").sum()),
                "records that are spikes": "-" if not shares else f"{found.mean:.2%} (worst seed {max(shares):.2%})",
            }
        )
    return pd.DataFrame(rows)


class _Health(NamedTuple):
    negative_weights: float
    smallest_row_sum: float
    largest_row_sum: float
    rotated_denominators_not_above_zero: int


def _health(feature_map: FeatureMap, q: Tensor, k: Tensor, *, causal: bool) -> _Health:
    identity = torch.eye(q.shape[-2], dtype=q.dtype).expand(1, 1, -1, -1)
    weights = linear_attention(
        q, k, identity, feature_map=feature_map, rope="after", causal=causal, implementation="reference"
    )
    visible = torch.ones_like(weights, dtype=torch.bool)
    visible = visible.tril() if causal else visible
    queries, keys = feature_map.queries(q), feature_map.keys(k)
    positions = torch.arange(q.shape[-2])
    rotated_q, rotated_k = (apply_rope(x.values, positions) for x in (queries, keys))
    if keys.log_scale is not None:
        # A query's own scale is positive, so it does not change a sign; a key's weighs it against the others.
        rotated_k = rotated_k * (keys.log_scale - keys.log_scale.amax()).exp()
    denominators = (rotated_q @ rotated_k.mT * visible).sum(-1)
    row_sums = weights.sum(-1)
    return _Health(
        ((weights < 0) & visible).sum().item() / visible.sum().item(),
        row_sums.min().item(),
        row_sums.max().item(),
        int((denominators <= 0).sum()),
    )


def _initial_shown(initial: pd.DataFrame) -> pd.DataFrame:
    def shown(values: "pd.Series[float]", pattern: str) -> str:
        return f"{values.mean():{pattern}} ({values.min():{pattern}} to {values.max():{pattern}})"

    rows = []
    for (name, sees), mine in initial.groupby(["feature_map", "sees"], sort=False):
        rows.append(
            {
                "feature map": name,
                "a query sees": sees,
                "draws": str(len(mine)),
                "negative weights": shown(mine["negative_weights"], ".1%"),
                "smallest row sum": shown(mine["smallest_row_sum"], ".2f"),
                "largest row sum": shown(mine["largest_row_sum"], ".2f"),
                f"rotated denominators ≤ 0, of {INITIAL_LENGTH}": shown(
                    mine["rotated_denominators_not_above_zero"], ".0f"
                ),
                "expected": EXPECTED.get((name, sees), "-"),
            }
        )
    return pd.DataFrame(rows)


EXPECTED: dict[Any, str] = {
    ("favor+", ALL_KEYS): "29.8 % negative, sums -0.61 to 1.41, 112 of 1024 denominators",
    ("elu+1", ALL_KEYS): "3.4 % negative, sums 0.15 to 0.46, no denominator",
}
"""one draw of our own, worked out before this code was written; nothing was published"""


def _read(root: Path) -> pd.DataFrame | None:
    path = root / "initial.csv"
    return read_csv(path, COLUMNS) if path.exists() else None


def _training_losses(curves: pd.DataFrame, variant: str, seed: int) -> "pd.Series[float]":
    rows = curves[(curves["variant"] == variant) & (curves["seed"] == seed)]
    rows = rows[(rows["split"] == "train") & (rows["metric"] == "bits_per_byte")]
    return rows.set_index("step")["value"].sort_index()


def _initially(feature_map: str, column: str, divided_by: int = 1) -> ReadSample:
    def sample(root: Path, comparison: dict[str, Any], cells: Cells) -> Sample | None:
        initial = _read(root)
        if initial is None:
            return None
        mine = initial[(initial["feature_map"] == feature_map) & (initial["sees"] == ALL_KEYS)]
        values = {int(row["draw"]): float(row[column]) / divided_by for row in mine.to_dict("records")}
        return Sample(values, INITIAL_DRAWS, unit_of_sample="draws")

    return sample


def _failed_more(arm: str, other: str) -> ReadSample:
    """1 where the arm diverged and the other did not, -1 the other way round, else 0, for each seed that both ended.

    A cell that failed for another reason (it was killed, say) tells nothing of the arm, and counts as lost.
    """

    def sample(root: Path, comparison: dict[str, Any], cells: Cells) -> Sample | None:
        if not {arm, other} <= {variant["name"] for variant in comparison["variants"]}:
            return None
        values, lost = {}, []
        for seed in comparison["seeds"]:
            ended = [cells.fates[name, seed] for name in (arm, other)]
            diverged = [state == "failed" and reason.startswith(DIVERGED) for state, reason in ended]
            if all(state == "done" or gone for (state, _), gone in zip(ended, diverged, strict=True)):
                values[seed] = float(diverged[0]) - float(diverged[1])
            elif any(state == "failed" for state, _ in ended):
                lost.append(f"seed {seed}: {'; '.join(reason for _, reason in ended if reason)}")
        return Sample(values, len(comparison["seeds"]), tuple(lost))

    return sample


def _spikes(arm: str, other: str) -> ReadSample:
    return per_seed((arm, other), lambda mine, theirs: _spikes_of(mine) - _spikes_of(theirs))


def _spikes_of(cell: Cell) -> float:
    losses = cell.curve("train_bits_per_byte")
    if len(losses) <= BEFORE:
        raise NotRecorded("as many records as a spike is told from")
    return spike_share(losses)


def _largest(cell: Cell) -> float:
    """log10 of the largest recorded gradient norm."""
    return math.log10(max(float(cell.curve("train_gradient_norm").max()), 1e-30))


def _nonpositive(arm: str) -> ReadSample:
    return per_seed((arm,), lambda cell: float(cell.curve("validation_nonpositive_denominators").mean()))


RECORDS = 70
"""of the training loss that can be spikes: one every 5 of 400 steps, less the first"""
DENOMINATORS = 100_000
"""that are looked at in a run, at least: 17 evaluations of 4 windows of 256 tokens in 2 layers of 4 heads"""

ROFORMER = 'RoFormer (2104.09864) eq. 19: the denominator is kept "to avoid the risk of dividing zero"; no measurement'
SANA = 'SANA-Video (2509.24695): no RoPE in the denominator "ensures training stability" (relu, video, not causal)'
INITIAL_DATA = "N(0, 1) inputs"
INITIAL_SIZE = f"one head of width {INITIAL_HEAD_DIM}, length {INITIAL_LENGTH:,}, no training"
EARLIER = "none found; worked out once for one draw"


def _claims() -> tuple[Claim, ...]:
    initial = [
        Claim(
            key="initial-negative-favor+",
            statement="At initialisation about 30 % of eq. 19's weights are negative with FAVOR+ (M = 256, D = 64).",
            published=f"{EARLIER}: 29.8 %. RoFormer (2104.09864) says that the numerator could contain negative terms",
            quantity="share of the weights of visible keys that are negative, no mask",
            region=(0.28, 0.32),
            margin=0.005,
            sample=_initially("favor+", "negative_weights"),
            pattern=".1%",
            family="initial",
            resolution=1 / INITIAL_LENGTH**2,
            data=INITIAL_DATA,
            size=INITIAL_SIZE,
        ),
        Claim(
            key="initial-negative-elu+1",
            statement="With elu+1 it is a tenth of that, about 3.4 %.",
            published=f"{EARLIER}: 3.4 %",
            quantity="share of the weights of visible keys that are negative, no mask",
            region=(0.029, 0.039),
            margin=0.001,
            sample=_initially("elu+1", "negative_weights"),
            pattern=".1%",
            family="initial",
            resolution=1 / INITIAL_LENGTH**2,
            data=INITIAL_DATA,
            size=INITIAL_SIZE,
        ),
        Claim(
            key="initial-rotated-favor+",
            statement="A rotated FAVOR+ denominator would be zero or below for about a tenth of the rows.",
            published=f"{EARLIER}: 112 of 1024. {ROFORMER}",
            quantity="share of rows whose rotated denominator is not above zero, no mask",
            region=(0.05, 0.15),
            margin=0.01,
            sample=_initially("favor+", "rotated_denominators_not_above_zero", INITIAL_LENGTH),
            pattern=".1%",
            family="initial",
            resolution=1 / INITIAL_LENGTH,
            data=INITIAL_DATA,
            size=INITIAL_SIZE,
        ),
        Claim(
            key="initial-rotated-elu+1",
            statement="A rotated elu+1 denominator would not.",
            published=f"{EARLIER}: none of 1024",
            quantity="share of rows whose rotated denominator is not above zero, no mask",
            region=(-inf, 0.001),
            margin=0.0001,
            sample=_initially("elu+1", "rotated_denominators_not_above_zero", INITIAL_LENGTH),
            pattern=".2%",
            family="initial",
            resolution=1 / INITIAL_LENGTH,
            data=INITIAL_DATA,
            size=INITIAL_SIZE,
        ),
    ]
    trained = []
    for kernel in KERNELS:
        published = SANA if kernel == "relu" else ROFORMER
        plain = f"{kernel}-rope-after"
        rotated, without = f"{plain}@denominator=rotated", f"{plain}@denominator=none"
        trained += [
            Claim(
                key=f"{kernel}-fails",
                statement=f"With {kernel}, a rotated denominator makes training fail.",
                published=published,
                quantity="cells that diverged (a loss or gradient that is not finite), rotated minus unrotated",
                region=(0, inf),
                margin=0.1,
                sample=_failed_more(rotated, plain),
                pattern="+.2f",
                family="stability",
                kind="count",
            ),
            Claim(
                key=f"{kernel}-gradients",
                statement=f"With {kernel}, a rotated denominator makes gradients larger.",
                published=published,
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
                resolution=1 / RECORDS,
            ),
            Claim(
                key=f"{kernel}-nonpositive",
                statement=f"With {kernel}, a rotated denominator does become zero or negative in training.",
                published=published,
                quantity="share of denominators that are not above zero, mean over the evaluations",
                region=(0, inf),
                margin=0.001,
                sample=_nonpositive(rotated),
                pattern=".2%",
                family="stability",
                resolution=1 / DENOMINATORS,
            ),
            Claim(
                key=f"{kernel}-loss",
                statement=f"With {kernel}, the unrotated denominator gives a lower loss than a rotated one.",
                published=published,
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
    return (*initial, *trained)


CLAIMS = _claims()

_INITIAL = (
    f"Eq. 19 before any training: N = {INITIAL_LENGTH}, D = {INITIAL_HEAD_DIM}, FAVOR+ with M = "
    f"{INITIAL_FEATURES} features, queries and keys with independent N(0, 1) entries. Mean over draws of inputs and "
    "features, in brackets the smallest and the largest. Expected: one draw that was worked out before this code was "
    "written; it says causal, but its row sums are those of queries that see all keys: a causal query that sees one "
    "key has the row sum 1, and one that sees few has a FAVOR+ denominator that may be tiny."
)
_FINAL = FigureEntry(
    "final-loss",
    "Loss after training, by denominator",
    "Test bits per byte after the last step. Cells that failed have no test loss; they are counted beside the name.",
)
_HEALTH = {
    "nonpositive-denominators": (
        "nonpositive_denominators",
        "share of denominators ≤ 0",
        "Denominators that are zero or below, during training",
        "Share of the denominators of all layers, heads and queries that are not above zero. An unrotated denominator "
        "is a sum of positive terms and cannot be; an arm without a denominator has no line.",
    ),
    "negative-weights": (
        "negative_weights",
        "share of negative weights",
        "Negative weights during training",
        "Share of the weights of visible keys that are below zero.",
    ),
    "largest-row-sum": (
        "largest_row_sum",
        "largest row sum",
        "The largest row sum during training",
        "Largest sum of a query's weights, over all layers, heads and queries; 1 for a rotated denominator, up to "
        "rounding.",
    ),
    "smallest-row-sum": (
        "smallest_row_sum",
        "smallest row sum",
        "The smallest row sum during training",
        "Smallest sum of a query's weights, over all layers, heads and queries.",
    ),
}
_STABILITY = (
    "Failed: the loss or a gradient was not finite, which ends the cell before the update. A spike is a recorded "
    f"training loss at least {HEIGHT} bits per byte above the mean of the {BEFORE} records before it; the share is the "
    "mean over finished seeds."
)
