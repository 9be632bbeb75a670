"""All that a comparison recorded, as one long table: the content of curves.csv."""

from pathlib import Path
from typing import Any

import pandas as pd

from experiments.records.record import cell_directory, cell_status, comparison_cells, read_metrics
from experiments.records.schema import METRIC_INDEX

CURVE_COLUMNS = ["variant", "seed", "step", "tokens", "split", "metric", "value"]


def read_curves(root: Path, comparison: dict[str, Any]) -> pd.DataFrame:
    """Every recorded number of a comparison as a long table with the columns of curves.csv.

    Raises ValueError that names the file and line if the records of a finished cell are damaged; those of another cell
    are left out: it is not finished, and its status says what is known of it.
    """
    records = []
    for variant, seed in comparison_cells(comparison):
        try:
            rows = read_metrics(cell_directory(root, variant, seed) / "metrics.jsonl")
        except ValueError:
            if cell_status(root, variant, seed)["state"] == "done":
                raise
            continue
        records += [
            (variant, seed, row["step"], row["tokens"], row["split"], metric, value)
            for row in rows
            for metric, value in row.items()
            if metric not in METRIC_INDEX
        ]
    return pd.DataFrame.from_records(records, columns=CURVE_COLUMNS)
