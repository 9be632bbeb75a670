"""The variance of the rotated score, plain and paired, as the pairing study measures it."""

from pathlib import Path

import pandas as pd

from experiments.analysis.samples import ReadSample
from experiments.records.csv_files import TEXT, number, whole
from experiments.records.schema import Comparison
from experiments.studies.features.kernel_errors import DIRECTIONS
from experiments.studies.pairing.variance import rotated_score_table
from experiments.studies.tables import Table
from experiments.training.objectives import NextToken

VARIANCE_DRAWS = 200
SHOWN_FEATURES = 64
SHOWN_SCALE = 0.5
VARIANCE = Table(
    "variance",
    {"map": TEXT, "directions": TEXT, "num_features": whole(2, 2**16), "scale": number(0)}
    | {"distance": whole(0, 2**20), "draw": whole(0, 10**6)},
    {"squared_error": number(0), "expected": number(0)},
)


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write variance.csv; returns nothing, as all of it can be measured."""
    tables = [rotated_score_table(draws=VARIANCE_DRAWS, directions=directions) for directions in DIRECTIONS]
    VARIANCE.write(root, *tables, float_format="%.6g")
    return []


def relative_change(one: str, other: str, distance: int) -> ReadSample:
    """The first map's squared error minus the second's, over the second's mean over draws, for each draw.

    Its mean is the relative change of the variance. Directions are orthogonal, as those of the trained models.
    """

    def quantity(variance: pd.DataFrame) -> "pd.Series[float]":
        rows = variance[(variance["num_features"] == SHOWN_FEATURES) & (variance["scale"] == SHOWN_SCALE)]
        rows = rows[(rows["distance"] == distance) & (rows["directions"] == "orthogonal")]
        first, second = (rows[rows["map"] == name].set_index("draw")["squared_error"] for name in (one, other))
        return ((first - second) / second.mean()).dropna()

    return VARIANCE.over_draws(quantity, VARIANCE_DRAWS)
