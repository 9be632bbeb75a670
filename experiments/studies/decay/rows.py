"""What the figures and tables of the study show."""

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.studies.decay.measure import (
    ATTENTION,
    BOUND,
    DISTANCES,
    HEAD_DIM,
    MASK_FEATURES,
    POSITION_LOSS,
    SCORES,
)
from experiments.train.masked import MaskedToken
from linear_rope.diagnostics import expected_rope_mask

UNIFORM = "uniform attention"
BY_HAND = "worked out by hand"
EXPECTED_BOUND = {0: 32.5, 1: 31.5, 50: 12.63, 100: 10.23, 200: 7.24, 256: 6.54}
"""what RoFormer's Figure 2 shows by distance, worked out from its definition; the paper prints no numbers"""
EXPECTED_SIMILARITY = {128: 0.284, 256: 0.354, 512: 0.185, 1024: 0.263}
"""c(Δ) at d = 64 where it rises again with distance, worked out from its definition; no paper prints numbers"""
EQUAL, INDEPENDENT = "a key equal to its query", "an independent key"


def attention(root: Path) -> pd.DataFrame | None:
    """Columns quantity (absolute, signed), variant, seed, layer, distance, value; one variant is ``UNIFORM``."""
    found = ATTENTION.read(root)
    if found is None:
        return None
    places = found[["layer", "distance"]].drop_duplicates()
    uniform = uniform_weight(found, read_comparison(root))
    even = places.assign(variant=UNIFORM, seed=0, absolute=uniform, signed=uniform)
    keys = ["variant", "seed", "layer", "distance"]
    return pd.concat([found, even]).melt(keys, ["absolute", "signed"], "quantity", "value")


def uniform_weight(attention: pd.DataFrame, comparison: Comparison) -> float:
    """The mean weight at any distance if each query gave equal weights to all keys that it sees."""
    length = 2 * (int(attention["distance"].max()) + 1)
    if comparison.objective.name == MaskedToken.name:  # it sees those behind it too
        return 1 / length
    return float((1 / np.arange(length // 2 + 1, length + 1)).mean())


def bound(root: Path) -> pd.DataFrame | None:
    """Columns by (computed here, or worked out by hand), distance, value."""
    found = BOUND.read(root)
    if found is None:
        return None
    by_hand = pd.DataFrame({"distance": EXPECTED_BOUND.keys(), "value": EXPECTED_BOUND.values(), "by": BY_HAND})
    return pd.concat([found.rename(columns={"bound": "value"}).assign(by="computed here"), by_hand])


def scores(root: Path) -> pd.DataFrame | None:
    """Columns key, by, draw, distance, value: the scores of real draws, and c(Δ) worked out by hand."""
    found = SCORES.read(root)
    if found is None:
        return None
    drawn = found.rename(columns={"equal": EQUAL, "gaussian": INDEPENDENT})
    drawn = drawn.melt(["draw", "distance"], [EQUAL, INDEPENDENT], "key", "value").assign(by="mean over draws")
    by_hand = {"distance": EXPECTED_SIMILARITY.keys(), "value": EXPECTED_SIMILARITY.values()}
    return pd.concat([drawn, pd.DataFrame(by_hand).assign(key=EQUAL, by=BY_HAND)])


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


def position_loss(root: Path) -> pd.DataFrame | None:
    """With ``middle``, that of the range of positions."""
    found = POSITION_LOSS.read(root)
    return None if found is None else found.assign(middle=(found["first"] + found["last"] + 1) / 2)
