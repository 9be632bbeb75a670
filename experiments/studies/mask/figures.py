"""The figures and the table of the mask study."""

from pathlib import Path

import pandas as pd

from experiments.analysis.statistics import estimate, finished_values
from experiments.figures.settings import loss_entries
from experiments.records.schema import Comparison
from experiments.studies.mask.measure import REDRAWN
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    values = finished_values(root, comparison, curves)
    entries = loss_entries(STUDY, output / "figures", values, summary, comparison, curves)
    redrawn = REDRAWN.read(root)
    return entries if redrawn is None else [*entries, STUDY.table("redrawn", redrawn_table(redrawn))]


def redrawn_table(redrawn: pd.DataFrame) -> pd.DataFrame:
    """A row of strings per variant: its loss with its own features, and what new ones add."""
    rows = []
    for name, mine in redrawn.groupby("variant", sort=False):
        own = mine[mine["draw"] == 0].set_index("seed")["bits_per_byte"]
        risen = mine[mine["draw"] > 0].groupby("seed")["bits_per_byte"].mean() - own
        found = estimate(risen.dropna().tolist())
        interval = f" [{found.low:+.3f}, {found.high:+.3f}]" if found.has_interval else ""
        rows.append(
            {
                "variant": name,
                "seeds": str(found.n),
                "own features": f"{own.mean():.3f}",
                "new features minus own": f"{found.mean:+.3f}{interval}",
            }
        )
    return pd.DataFrame(rows)
