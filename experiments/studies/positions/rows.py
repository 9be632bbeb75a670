"""What the figure and the tables of the positions study show."""

from pathlib import Path

import pandas as pd

from experiments.records.record import read_comparison
from experiments.studies.length.measure import AS_TRAINED, LOSSES, window_means
from experiments.studies.positions.measure import COST, LONGEST


def costs(root: Path) -> pd.DataFrame | None:
    """By variant and round (as a seed) the time of a step over that of its kernel without positions, less 1."""
    measured = COST.read(root)
    if measured is None:
        return None
    times = measured.pivot(index="round", columns="variant", values="seconds")
    without = {each.name: f"{each.kernel}-none" for each in read_comparison(root).variants}
    pairs = {name: base for name, base in without.items() if {name, base} <= {*times} and name != base}
    ratios = pd.DataFrame({name: times[name] / times[base] - 1 for name, base in pairs.items()})
    long = ratios.rename_axis("seed").reset_index().melt("seed", var_name="variant")
    return long.dropna(subset="value")


def rises(root: Path) -> pd.DataFrame | None:
    """By variant and seed the loss in the longest windows minus that in windows of the training length."""
    measured = LOSSES.read(root)
    if measured is None:
        return None
    means = window_means(measured[measured["method"] == AS_TRAINED])
    wide = means.pivot(index=["variant", "seed"], columns="length", values="bits_per_byte")
    short = wide.columns.min()
    if LONGEST * short not in wide:
        return None
    return (wide[LONGEST * short] - wide[short]).dropna().rename("value").reset_index()
