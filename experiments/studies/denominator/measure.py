"""Eq. 19 before any training (signs, row sums and denominators for random queries and keys), and spikes of a loss."""

from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from experiments.records.csv_files import TEXT, number, read_csv, to_csv, whole
from experiments.records.files import is_there, write_atomically
from experiments.records.schema import Comparison
from experiments.training.objectives import NextToken
from linear_rope import EluPlusOne, FavorPlus, apply_rope, linear_attention
from linear_rope.features import FeatureMap

INITIAL_LENGTH, INITIAL_HEAD_DIM, INITIAL_FEATURES = 1024, 64, 256
INITIAL_DRAWS = 20
ALL_KEYS, CAUSAL = "all keys", "causal"
BEFORE = 10
"""records whose mean a record is compared with"""
HEIGHT = 0.5
"""bits per byte above that mean"""
COLUMNS = {
    "feature_map": TEXT,
    "sees": TEXT,
    "draw": whole(0, 10**6),
    "negative_weights": number(0),
    "smallest_row_sum": number(),
    "largest_row_sum": number(),
    "rotated_denominators_not_above_zero": whole(0, INITIAL_LENGTH),
}


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write initial.csv; returns nothing, as all of it can be measured."""
    write_atomically(root / "initial.csv", to_csv(initial_table(), "%.9g"))
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
                rows.append((name, sees, draw_number, *_health(feature_map, q, k, causal=sees == CAUSAL)))
    return pd.DataFrame.from_records(rows, columns=list(COLUMNS))


def read_initial(root: Path) -> pd.DataFrame | None:
    """The table of initial.csv; None if there is none. Raises ValueError if it is not as it should be."""
    path = root / "initial.csv"
    return read_csv(path, COLUMNS, key=["feature_map", "sees", "draw"]) if is_there(path) else None


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
