"""What the figures of attention show."""

from pathlib import Path

import numpy as np
import pandas as pd

from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.studies.decay.measure import ATTENTION
from experiments.train.masked import MaskedToken

UNIFORM = "uniform attention"


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
