"""What the decay study measures, the CSV files that it leaves, and the quantities that its claims are about."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from experiments.config import Config
from experiments.judge.statistics import estimates
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.studies.tables import RUN, Table, whole_means
from experiments.train.masked import MaskedToken
from experiments.train.objectives import NextByte, NextToken, Objective, evenly_spaced
from experiments.train.position_loss import bins, by_bin, losses_by_position, overlapping
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
SMALLEST_SCORE = 0.02
"""of a score whose standard deviation or largest value is 1"""

WINDOWS = 8
"""of the validation split, for attention weights"""
SPANS, SPAN_CONTEXTS = 8, 16
"""stretches of the test split, each of this many contexts, whose overlapping windows give the loss by position"""


_DISTANCE, _DRAW = {"distance": int}, {"draw": int}
BOUND = Table("bound", _DISTANCE, {"bound": float})
BOUND_BY_WIDTH = Table("bound_widths", {"width": int}, {"near": float, "far": float})
_INTERVAL = dict.fromkeys(("mean", "low", "high"), float)
MASK = Table("mask", {"num_features": int} | _DISTANCE, _INTERVAL)
KEPT_MASK = Table("mask_draws", _DISTANCE | _DRAW, {"expected": float, "ratio": float})
SCORES = Table("scores", _DRAW | _DISTANCE, {"equal": float, "gaussian": float, "over_bound": float})
ATTENTION = Table("attention", RUN | {"layer": int} | _DISTANCE, {"signed": float, "absolute": float})
POSITION_LOSS = Table("position_loss", RUN | {"first": int}, {"last": int, "bits_per_byte": float})


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write all of these tables; returns sentences about what could not be measured."""
    BOUND.write(root, bound_table())
    BOUND_BY_WIDTH.write(root, bound_widths_table())
    SCORES.write(root, scores_table())
    draws = mask_draws_table()
    MASK.write(root, mask_table(draws))
    kept = (draws["num_features"] == KEPT_FEATURES) & draws["distance"].isin(KEPT_DISTANCES)
    KEPT_MASK.write(root, draws[kept])
    notes = measure_trained_models(root, comparison, objective)
    return notes + measure_position_loss(root, comparison, objective)


def measure_trained_models(root: Path, comparison: Comparison, objective: Objective) -> list[str]:
    """Write attention.csv: mean weight and mean absolute weight by distance, for every layer of every trained run.

    Over evenly spaced validation windows, from a token to itself and those before it. Returns a sentence for each run
    whose final weights are not there, or one that says why there is no table.
    """
    tokens = objective.diagnosed("validation", WINDOWS)
    if tokens is None:
        return [f"--data {objective.corpus.name} is not read in windows of one length: no attention was measured"]

    def by_distance(variant: str, seed: int, model: Any) -> Iterator[pd.DataFrame]:
        on_device = tokens.to(next(model.parameters()).device)
        for layer, weights in enumerate(attention_maps(model, on_device)):
            signed, absolute = (mean.numpy() for mean in weight_by_distance(weights.cpu()))
            columns = {"distance": np.arange(len(signed)), "signed": signed, "absolute": absolute}
            yield pd.DataFrame({"layer": layer} | columns)

    return ATTENTION.measure(root, comparison, objective, "attention by distance", by_distance)


def measure_position_loss(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write position_loss.csv: bits per byte over ranges of positions that double, for every trained run.

    Over overlapping windows of the test split, so that the ranges differ in their past and not in what is to be
    predicted. Returns a sentence for each run whose final weights are not there, or one that says why there is no
    table.
    """
    config = Config.of(comparison.config)
    if not isinstance(objective, NextByte):
        return [f"--data {objective.corpus.name} is not learnt as a text of bytes: no loss by position was measured"]
    length = min(SPAN_CONTEXTS * config.context, len(objective.corpus.test) - 1)
    if length < 2 * config.context:
        return [f"the test split of --data {objective.corpus.name} is too short for a loss by position"]
    windows, counted = overlapping(evenly_spaced(objective.corpus.test, length, SPANS), config.context)
    return POSITION_LOSS.measure(
        *(root, comparison, objective, "the loss by position"),
        lambda variant, seed, model: [by_bin(losses_by_position(model, windows, config, counted))],
    )


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
    parts = []
    for num_features in MASK_FEATURES:
        expected = expected_rope_mask(positions, num_features).numpy()
        for draw in range(draws):
            feature_map = FavorPlus(HEAD_DIM, num_features, seed=draw)
            scores = (_at_distances(feature_map(q)) * feature_map(k).unsqueeze(1)).sum(-1)
            ratio = (scores / exact.unsqueeze(-1)).mean(0).numpy()
            place = {"num_features": num_features, "distance": DISTANCES, "draw": draw}
            parts.append(pd.DataFrame(place | {"expected": expected, "ratio": ratio}))
    return pd.concat(parts, ignore_index=True)


def mask_table(of_draws: pd.DataFrame) -> pd.DataFrame:
    """``mask_draws_table`` averaged over draws, with the 95 % interval over draws.

    Columns num_features, distance, expected, mean, low, high, draws.
    """
    found = estimates(of_draws, ["num_features", "distance", "expected"], "ratio").reset_index()
    return found.rename(columns={"n": "draws"})[[*MASK.key, "expected", *MASK.values, "draws"]]


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
    parts = []
    for draw in range(draws):
        q, k = torch.randn(2, SCORE_PAIRS, HEAD_DIM, generator=generator, dtype=torch.float64)
        rotated = _at_distances(q)
        equal = ((rotated * q.unsqueeze(1)).sum(-1) / q.square().sum(-1, keepdim=True)).mean(0)
        gaussian = ((rotated * k.unsqueeze(1)).sum(-1) / math.sqrt(HEAD_DIM)).mean(0)
        means = {"equal": equal, "gaussian": gaussian, "over_bound": _over_bound(q, k, positions, sums).amax(0)}
        of_draw = {name: values.numpy() for name, values in means.items()}
        parts.append(pd.DataFrame({"draw": draw, "distance": DISTANCES} | of_draw))
    return pd.concat(parts, ignore_index=True)


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


def near_and_far(attention: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """Mean absolute weights over layers, ``where``: near, distances 1 to a 32nd of the context; far, a quarter of it to
    a half, the largest that are measured.
    """
    layers, context = comparison.config["layers"], comparison.config["context"]
    ranges = {"near": range(1, max(1, context // 32) + 1), "far": range(context // 4, context // 2)}
    parts = []
    for where, distances in ranges.items():
        rows = attention[attention["distance"].isin(distances)]
        found = whole_means(rows, ["variant", "seed"], "absolute", layers * len(distances))
        parts.append(found.assign(where=where))
    return pd.concat(parts)


def by_end(losses: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """With ``ranges_from_the_end``, 0 for the last range of positions; of runs of which all ranges are there."""
    runs: Any = losses.sort_values("first").groupby(["variant", "seed"], group_keys=False)
    ranges = bins(comparison.config["context"])
    rows = runs.filter(lambda run: list(zip(run["first"], run["last"], strict=True)) == ranges)
    after = rows.groupby(["variant", "seed"]).cumcount(ascending=False)
    return rows.assign(ranges_from_the_end=after)


score = SCORES.samples(planned=SCORE_DRAWS)
bound_falls = BOUND_BY_WIDTH.samples("width", len(BOUND_WIDTHS), "widths")
mask_error = KEPT_MASK.samples(planned=MASK_DRAWS)
weights = ATTENTION.samples("seed", prepare=near_and_far)
position_loss = POSITION_LOSS.samples("seed", prepare=by_end)


UNIFORM = "uniform attention"
BY_HAND = "worked out by hand"
EXPECTED_BOUND = {0: 32.5, 1: 31.5, 50: 12.63, 100: 10.23, 200: 7.24, 256: 6.54}
"""what RoFormer's Figure 2 shows by distance, worked out from its definition; the paper prints no numbers"""
EXPECTED_SIMILARITY = {128: 0.284, 256: 0.354, 512: 0.185, 1024: 0.263}
"""c(Δ) at d = 64 where it rises again with distance, worked out from its definition; no paper prints numbers"""
EQUAL, INDEPENDENT = "a key equal to its query", "an independent key"


def attention(root: Path) -> pd.DataFrame:
    """Columns quantity (absolute, signed), variant, seed, layer, distance, value; one variant is ``UNIFORM``."""
    found = ATTENTION.read(root)
    uniform = uniform_weight(found, read_comparison(root))
    even = found.drop_duplicates(["layer", "distance"])
    even = even.assign(variant=UNIFORM, seed=0, absolute=uniform, signed=uniform)
    keys = ["variant", "seed", "layer", "distance"]
    return pd.concat([found, even]).melt(keys, ["absolute", "signed"], "quantity", "value")


def uniform_weight(attention: pd.DataFrame, comparison: Comparison) -> float:
    """The mean weight at any distance if each query gave equal weights to all keys that it sees."""
    length = 2 * (int(attention["distance"].max()) + 1)
    if comparison.objective.name == MaskedToken.name:  # it sees those behind it too
        return 1 / length
    return float((1 / np.arange(length // 2 + 1, length + 1)).mean())


def bound(root: Path) -> pd.DataFrame:
    """Columns by (computed here, or worked out by hand), distance, value."""
    found = BOUND.read(root).rename(columns={"bound": "value"}).assign(by="computed here")
    return pd.concat([found, by_hand(EXPECTED_BOUND)])


def scores(root: Path) -> pd.DataFrame:
    """Columns key, by, draw, distance, value: the scores of real draws, and c(Δ) worked out by hand."""
    drawn = SCORES.read(root).rename(columns={"equal": EQUAL, "gaussian": INDEPENDENT})
    drawn = drawn.melt(["draw", "distance"], [EQUAL, INDEPENDENT], "key", "value").assign(by="mean over draws")
    return pd.concat([drawn, by_hand(EXPECTED_SIMILARITY).assign(key=EQUAL)])


def by_hand(values: dict[int, float]) -> pd.DataFrame:
    return pd.DataFrame({"distance": values.keys(), "value": values.values(), "by": BY_HAND})


def expected(root: Path) -> pd.DataFrame:
    """Columns num_features, key, distance, value: c(Δ) at many distances for each width, and 0 of independent keys."""
    every = torch.linspace(0, DISTANCES[-1], 2049, dtype=torch.float64).round().long().unique()
    parts = [
        pd.DataFrame({"num_features": width, "distance": every, "value": expected_rope_mask(every, width)})
        for width in sorted({*MASK_FEATURES, HEAD_DIM})
    ]
    found = pd.concat(parts)
    found["key"] = np.where(found["num_features"] == HEAD_DIM, EQUAL, "")
    return pd.concat([found, pd.DataFrame({"distance": every, "value": 0.0, "key": INDEPENDENT})])


def loss_by_position(root: Path) -> pd.DataFrame:
    """With ``middle``, that of the range of positions."""
    found = POSITION_LOSS.read(root)
    return found.assign(middle=(found["first"] + found["last"] + 1) / 2)
