"""What the figures and the table of state tracking show."""

from pathlib import Path

import pandas as pd

from experiments.records.record import read_comparison
from experiments.studies.state_tracking.measure import ACCURACIES, FACTORS, guessing


def tracked(root: Path) -> pd.DataFrame | None:
    """The accuracy by the last position of each range; a variant "guessing" besides."""
    found, comparison = ACCURACIES.read(root), read_comparison(root)
    if found is None:
        return None
    chance = pd.DataFrame({"variant": "guessing", "seed": 0, "factor": FACTORS, "accuracy": guessing(comparison)})
    rows = pd.concat([found, chance]).rename(columns={"accuracy": "value"})
    return rows.assign(last=rows["factor"] * int(comparison.config["context"]))
