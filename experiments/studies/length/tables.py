"""The losses by window length that the length experiment leaves, and the tables made of them."""

from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.statistics import estimate
from experiments.records.csv_files import TEXT, number, read_csv, whole
from experiments.records.schema import Comparison
from experiments.training.position_loss import bins

AS_TRAINED = "as trained"
IN_SHORT_WINDOWS = "in windows of the training length"
"""the targets of the longest windows by their position there, each predicted in a window of the training length"""

COLUMNS = {
    "variant": TEXT,
    "seed": whole(0, 10**6),
    "method": TEXT,
    "length": whole(1, 2**30),
    "first": whole(0, 2**30),
    "last": whole(0, 2**30),
    "bits_per_byte": number(0),
}


def read_losses(root: Path) -> pd.DataFrame | None:
    """length.csv, or None where there is none yet. Raises ValueError for a file that is not as it should be."""
    path = root / "length.csv"
    key = ["variant", "seed", "method", "length", "first"]
    return read_csv(path, COLUMNS, key=key) if path.exists() else None


def by_position(measured: pd.DataFrame) -> pd.DataFrame:
    """What the longest windows add to the loss of the same targets in windows of the training length.

    Columns variant, seed, first, last, added: by range of positions in the longest windows, of models as trained, for
    variants that were evaluated there.
    """
    keys = ["variant", "seed", "first", "last"]
    short = measured[measured["method"] == IN_SHORT_WINDOWS].set_index(keys)["bits_per_byte"]
    longest = measured[(measured["method"] == AS_TRAINED) & (measured["length"] == measured["length"].max())]
    added = longest.set_index(keys)["bits_per_byte"] - short
    return added.dropna().rename("added").reset_index()


def window_means(measured: pd.DataFrame) -> pd.DataFrame:
    """Mean over all positions: columns variant, seed, method, length, bits_per_byte.

    Of windows whose positions are all there, in the ranges of ``by_bin``.
    """
    size = measured["last"] - measured["first"] + 1
    weighted = measured.assign(total=measured["bits_per_byte"] * size, size=size)
    keys = ["variant", "seed", "method", "length"]
    grouped: Any = weighted.groupby(keys, sort=False)
    whole_windows = [
        set(zip(rows["first"], rows["last"], strict=True)) == set(bins(place[-1])) for place, rows in grouped
    ]
    sums = grouped[["total", "size"]].sum()[whole_windows].reset_index()
    return sums.assign(bits_per_byte=sums["total"] / sums["size"])[[*keys, "bits_per_byte"]]


def length_table(means: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """A row of strings per variant and method: bits per byte by length, mean over seeds."""
    lengths = sorted(means["length"].unique())
    rows = []
    for variant in comparison.variants:
        mine = means[means["variant"] == variant.name]
        for method in mine["method"].unique():
            by_length = mine[mine["method"] == method].groupby("length")["bits_per_byte"]
            found = {int(length): estimate(list(values)) for length, values in by_length}
            row = {"variant": variant.name, "evaluated": method, "n": str(max(each.n for each in found.values()))}
            for length in lengths:
                row[f"{length:,}"] = f"{found[length].mean:.3f}" if length in found else "-"
            rows.append(row)
    return pd.DataFrame(rows)
