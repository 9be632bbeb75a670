"""What the table of new features shows."""

from pathlib import Path

import pandas as pd

from experiments.studies.mask.measure import REDRAWN


def risen(root: Path) -> pd.DataFrame | None:
    """By variant and seed the loss with new features, mean over draws, minus that with its own."""
    redrawn = REDRAWN.read(root)
    if redrawn is None:
        return None
    losses = redrawn.pivot(index=["variant", "seed"], columns="draw", values="bits_per_byte")
    found = losses.drop(columns=0).mean(axis=1) - losses[0]
    return found.dropna().rename("value").reset_index()
