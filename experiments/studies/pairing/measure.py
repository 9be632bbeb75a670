"""The variance of the rotated score, plain and paired, as the pairing study measures it."""

from pathlib import Path

import pandas as pd

from experiments.records.csv_files import TEXT, number, read_csv, to_csv, whole
from experiments.records.files import is_there, write_atomically
from experiments.records.schema import Comparison
from experiments.studies.features.kernel_errors import DIRECTIONS
from experiments.studies.pairing.variance import rotated_score_table
from experiments.training.objectives import NextToken

VARIANCE_DRAWS = 200
SHOWN_FEATURES = 64
SHOWN_SCALE = 0.5
COLUMNS = {
    "map": TEXT,
    "directions": TEXT,
    "num_features": whole(2, 2**16),
    "scale": number(0),
    "distance": whole(0, 2**20),
    "draw": whole(0, 10**6),
    "squared_error": number(0),
    "expected": number(0),
}


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write variance.csv; returns nothing, as all of it can be measured."""
    tables = [rotated_score_table(draws=VARIANCE_DRAWS, directions=directions) for directions in DIRECTIONS]
    write_atomically(root / "variance.csv", to_csv(pd.concat(tables), "%.6g"))
    return []


def read_variance(root: Path) -> pd.DataFrame | None:
    """The table of variance.csv; None if there is none. Raises ValueError if it is not as it should be."""
    path = root / "variance.csv"
    key = ["map", "directions", "num_features", "scale", "distance", "draw"]
    return read_csv(path, COLUMNS, key=key) if is_there(path) else None
