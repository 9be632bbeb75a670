"""What the decay study measures, and the CSV files that it leaves."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from experiments.analysis.statistics import estimate
from experiments.config import Config
from experiments.records.csv_files import REMEDY, TEXT, Column, number, read_csv, to_csv, whole
from experiments.records.files import is_there, write_atomically, wrong_file
from experiments.records.schema import Comparison
from experiments.training.objectives import NextByte, NextToken, evenly_spaced
from experiments.training.position_loss import by_bin, losses_by_position, overlapping
from experiments.training.trained_models import trained_models
from linear_rope import FavorPlus, apply_rope
from linear_rope.diagnostics import attention_maps, expected_rope_mask, rope_decay_bound, weight_by_distance
from linear_rope.positions.rotary import rope_frequencies

BOUND_WIDTH = 128
BOUND_DISTANCES = 257
BOUND_WIDTHS = (32, 64, 128, 256)
"""head dimensions at which the bound's fall is looked at"""
BOUND_NEAR, BOUND_FAR = 1, 256

HEAD_DIM = 64
DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

MASK_FEATURES = (16, 64, 256)
MASK_DRAWS = 1000
MASK_PAIRS = 64
KEPT_FEATURES, KEPT_DISTANCES = 256, (8, 64, 512)
"""where the draws are kept one by one, for the claims"""

SCORE_DRAWS = 200
SCORE_PAIRS = 256

WINDOWS = 8
"""of the validation split, for attention weights"""
SPANS, SPAN_CONTEXTS = 8, 16
"""stretches of the test split, each of this many contexts, whose overlapping windows give the loss by position"""

_DISTANCE = whole(0, 2**20)
_SEED = whole(0, 10**6)
COLUMNS: dict[str, dict[str, Column]] = {
    "bound": {"distance": _DISTANCE, "bound": number()},
    "bound_widths": {"width": whole(2, 4096), "near": number(0), "far": number(0)},
    "mask": {
        "num_features": whole(2, 4096),
        "distance": _DISTANCE,
        "mean": number(),
        "low": number(),
        "high": number(),
    },
    "mask_draws": {"distance": _DISTANCE, "draw": whole(0, 10**6), "expected": number(), "ratio": number()},
    "scores": {
        "draw": whole(0, 10**6),
        "distance": _DISTANCE,
        "equal": number(),
        "gaussian": number(),
        "over_bound": number(0),
    },
    "attention": {
        "variant": TEXT,
        "seed": _SEED,
        "layer": whole(0, 255),
        "distance": _DISTANCE,
        "signed": number(),
        "absolute": number(0),
    },
    "position_loss": {
        "variant": TEXT,
        "seed": _SEED,
        "first": whole(0, 2**30),
        "last": whole(0, 2**30),
        "bits_per_byte": number(0),
    },
}
"""what is read of each CSV file; what they hold besides is for other readers"""


KEYS = {
    "bound": ["distance"],
    "bound_widths": ["width"],
    "mask": ["num_features", "distance"],
    "mask_draws": ["distance", "draw"],
    "scores": ["draw", "distance"],
    "attention": ["variant", "seed", "layer", "distance"],
    "position_loss": ["variant", "seed", "first"],
}
"""what no two rows of a table have in common"""


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write the CSV files of ``COLUMNS``; returns sentences about what could not be measured."""
    write(root, "bound", bound_table())
    write(root, "bound_widths", bound_widths_table())
    write(root, "scores", scores_table())
    of_draws = mask_draws_table()
    write(root, "mask", mask_table(of_draws))
    write(root, "mask_draws", kept_draws(of_draws))
    notes = measure_trained_models(root, comparison, objective)
    return notes + measure_position_loss(root, comparison, objective)


def measure_trained_models(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write attention.csv: mean weight and mean absolute weight by distance, for every layer of every trained cell.

    Columns variant, seed, layer, distance, signed, absolute; over evenly spaced validation windows. Returns a sentence
    for each cell whose final weights are not there.
    """
    tokens = objective.windows("validation", WINDOWS)[0]
    tables: list[pd.DataFrame] = []
    notes: list[str] = []
    for name, seed, model in trained_models(root, comparison, objective, "attention by distance", notes):
        on_device = tokens.to(next(model.parameters()).device)
        for layer, weights in enumerate(attention_maps(model, on_device)):
            signed, absolute = weight_by_distance(weights.cpu())
            columns = {"distance": np.arange(len(signed)), "signed": signed.numpy(), "absolute": absolute.numpy()}
            tables.append(pd.DataFrame({"variant": name, "seed": seed, "layer": layer, **columns}))
    if tables:
        write(root, "attention", pd.concat(tables))
    return notes


def measure_position_loss(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write position_loss.csv: bits per byte over ranges of positions that double, for every trained cell.

    Columns variant, seed, first, last, bits_per_byte; over overlapping windows of the test split, so that the
    ranges differ in their past and not in what is to be predicted. Returns a sentence for each cell whose final weights
    are not there, or one that says why there is no table.
    """
    config = Config(**comparison.config)
    if not isinstance(objective, NextByte):
        return [f"--data {objective.corpus.name} is not learnt as a text of bytes: no loss by position was measured"]
    length = min(SPAN_CONTEXTS * config.context, len(objective.corpus.test) - 1)
    if length < 2 * config.context:
        return [f"the test split of --data {objective.corpus.name} is too short for a loss by position"]
    windows, counted = overlapping(evenly_spaced(objective.corpus.test, length, SPANS), config.context)
    tables: list[pd.DataFrame] = []
    notes: list[str] = []
    for name, seed, model in trained_models(root, comparison, objective, "the loss by position", notes):
        losses = by_bin(losses_by_position(model, windows, config, counted))
        tables.append(losses.assign(variant=name, seed=seed)[list(COLUMNS["position_loss"])])
    if tables:
        write(root, "position_loss", pd.concat(tables))
    return notes


def read(root: Path, name: str) -> pd.DataFrame | None:
    """One of ``COLUMNS``' tables; None if there is none. Raises ValueError if it is not as it should be."""
    path = root / f"{name}.csv"
    if not is_there(path):
        return None
    table = read_csv(path, COLUMNS[name], key=KEYS[name])
    if name == "mask":
        _check_mask(table, path)
    return table


def write(root: Path, name: str, table: pd.DataFrame) -> None:
    """Write a table to its CSV file."""
    write_atomically(root / f"{name}.csv", to_csv(table, "%.9g"))


def bound_table() -> pd.DataFrame:
    """RoFormer's Figure 2: (2/d)·Σ|S_i| by distance; columns distance, bound."""
    distances = torch.arange(BOUND_DISTANCES)
    return pd.DataFrame({"distance": distances.numpy(), "bound": rope_decay_bound(distances, BOUND_WIDTH).numpy()})


def bound_widths_table() -> pd.DataFrame:
    """The bound at two distances, for several widths; columns width, near, far."""
    ends = torch.tensor([BOUND_NEAR, BOUND_FAR])
    rows = [(width, *rope_decay_bound(ends, width).tolist()) for width in BOUND_WIDTHS]
    return pd.DataFrame.from_records(rows, columns=["width", "near", "far"])


def mask_draws_table(draws: int = MASK_DRAWS, seed: int = 0) -> pd.DataFrame:
    """The rotated FAVOR+ score over its unrotated expectation, for each draw, beside c(Δ).

    For N(0, ¼) queries and keys (at N(0, 1) the variance of FAVOR+ would hide the mean). The score at distance Δ is
    (R_Δ φ(q))ᵀφ(k) / exp(qᵀk/√D); a draw's value is the mean over the pairs. Columns num_features, distance, draw,
    expected, ratio.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, MASK_PAIRS, HEAD_DIM, generator=generator).double() / 2
    exact = ((q * k).sum(-1) / math.sqrt(HEAD_DIM)).exp()
    positions = torch.tensor(DISTANCES)
    rows: list[tuple[float, ...]] = []
    for num_features in MASK_FEATURES:
        expected = expected_rope_mask(positions, num_features).tolist()
        for draw in range(draws):
            feature_map = FavorPlus(HEAD_DIM, num_features, seed=draw)
            mapped_q, mapped_k = feature_map(q), feature_map(k)
            scores = (_at_distances(mapped_q) * mapped_k.unsqueeze(1)).sum(-1)
            ratios = (scores / exact.unsqueeze(-1)).mean(0).tolist()
            rows += [
                (num_features, distance, draw, c, ratio)
                for distance, c, ratio in zip(DISTANCES, expected, ratios, strict=True)
            ]
    return pd.DataFrame.from_records(rows, columns=["num_features", "distance", "draw", "expected", "ratio"])


def kept_draws(of_draws: pd.DataFrame) -> pd.DataFrame:
    """The draws that mask_draws.csv holds."""
    return of_draws[(of_draws["num_features"] == KEPT_FEATURES) & of_draws["distance"].isin(KEPT_DISTANCES)]


def mask_table(of_draws: pd.DataFrame) -> pd.DataFrame:
    """``mask_draws_table`` averaged over draws, with the 95 % interval over draws.

    Columns num_features, distance, expected, mean, low, high, draws.
    """
    rows = []
    for (num_features, distance, expected), values in of_draws.groupby(
        ["num_features", "distance", "expected"], sort=False
    )["ratio"]:
        found = estimate(list(values))
        rows.append((num_features, distance, expected, found.mean, found.low, found.high, found.n))
    columns = ["num_features", "distance", "expected", "mean", "low", "high", "draws"]
    return pd.DataFrame.from_records(rows, columns=columns)


def scores_table(draws: int = SCORE_DRAWS, seed: int = 0) -> pd.DataFrame:
    """RoPE's scores of random content, by distance, for each draw of N(0, 1) queries and keys.

    Columns draw, distance and, over the pairs of a draw,

    * equal: mean of xᵀR_Δx / |x|², a key with the query's own content; its expectation is c(Δ);
    * gaussian: mean of qᵀR_Δk / √D, independent content; its expectation is 0 (Barbero et al. 2024, arXiv 2410.06205);
    * over_bound: the largest |Σ h_i e^{iΔθ_i}| over RoFormer's bound on it (eq. 37), which also depends on the content.
    """
    generator = torch.Generator().manual_seed(seed)
    positions = torch.tensor(DISTANCES)
    sums = rope_decay_bound(positions, HEAD_DIM) * (HEAD_DIM / 2)
    rows: list[tuple[float, ...]] = []
    for draw in range(draws):
        q, k = torch.randn(2, SCORE_PAIRS, HEAD_DIM, generator=generator, dtype=torch.float64)
        rotated = _at_distances(q)
        equal = ((rotated * q.unsqueeze(1)).sum(-1) / q.square().sum(-1, keepdim=True)).mean(0)
        gaussian = ((rotated * k.unsqueeze(1)).sum(-1) / math.sqrt(HEAD_DIM)).mean(0)
        over_bound = _over_bound(q, k, positions, sums).amax(0)
        columns = (equal.tolist(), gaussian.tolist(), over_bound.tolist())
        rows += [(draw, *of_distance) for of_distance in zip(DISTANCES, *columns, strict=True)]
    return pd.DataFrame.from_records(rows, columns=["draw", "distance", "equal", "gaussian", "over_bound"])


def _over_bound(q: Tensor, k: Tensor, positions: Tensor, sums: Tensor) -> Tensor:
    """|Σ h_i e^{iΔθ_i}| / (max_i |h_{i+1} − h_i| · Σ|S_{i+1}|), h_i = q_i·conj(k_i) of pair i as a complex number.

    (pairs, distances). h ends with a zero, as in RoFormer's section 3.4.3.
    """
    products = torch.view_as_complex(q.unflatten(-1, (-1, 2))) * torch.view_as_complex(k.unflatten(-1, (-1, 2))).conj()
    angles = positions.double().unsqueeze(-1) * rope_frequencies(HEAD_DIM)
    score = (products.unsqueeze(1) * torch.polar(torch.ones_like(angles), angles)).sum(-1).abs()
    ended = torch.cat((products, torch.zeros_like(products[:, :1])), dim=-1)
    return score / (ended.diff(dim=-1).abs().amax(-1, keepdim=True) * sums)


def _at_distances(x: Tensor) -> Tensor:
    """(pairs, width) → (pairs, distances, width): rotated to each of ``DISTANCES``."""
    return apply_rope(x.unsqueeze(1).expand(-1, len(DISTANCES), -1), torch.tensor(DISTANCES))


def _check_mask(mask: pd.DataFrame, path: Path) -> None:
    if not (mask["low"].le(mask["mean"]) & mask["mean"].le(mask["high"])).all():
        raise wrong_file(str(path), "has a mean that is not between low and high", REMEDY)
    if (mask["num_features"] % 2).any():
        raise wrong_file(str(path), "has an odd num_features", REMEDY)
