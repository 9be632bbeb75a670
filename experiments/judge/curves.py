"""All that a comparison recorded, as one long table: the content of curves.csv."""

from pathlib import Path

import pandas as pd

from experiments.records.record import run_rows, run_status
from experiments.records.schema import Comparison

CURVE_COLUMNS = ["variant", "seed", "step", "tokens", "split", "metric", "value"]


def read_curves(root: Path, comparison: Comparison) -> pd.DataFrame:
    """Every recorded number of a comparison as a long table with the columns of curves.csv.

    Raises ValueError that names the file and line if the records of a finished run are damaged; those of another run
    are left out: it is not finished, and its status says what is known of it.
    """
    records = []
    for variant, seed in comparison.runs:
        try:
            rows = run_rows(root, variant, seed)
        except ValueError:
            if run_status(root, variant, seed).state == "done":
                raise
            continue
        records += [
            (variant, seed, row.step, row.tokens, row.split, metric, value)
            for row in rows
            for metric, value in row.metrics.items()
        ]
    return pd.DataFrame.from_records(records, columns=CURVE_COLUMNS)
