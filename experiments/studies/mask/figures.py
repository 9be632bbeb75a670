"""The figures and the table of the mask study."""

from pathlib import Path

import pandas as pd

from experiments.analysis.statistics import estimate, finished_values
from experiments.figures.settings import curves_by_setting, final_by_setting
from experiments.figures.style import draw
from experiments.records.schema import Comparison
from experiments.studies.mask.measure import read_redrawn
from experiments.studies.mask.study import STUDY
from experiments.study import FigureEntry, TableEntry


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    directory = output / "figures"
    entries: list[FigureEntry | TableEntry] = []
    values = finished_values(root, comparison, curves)
    if not values.empty:
        entries.append(draw(directory, STUDY.figure("final-loss"), final_by_setting, values, summary, comparison))
        what = {"metric": "bits_per_byte", "quantity": "bits per byte", "start": 0.25}
        entries.append(
            draw(directory, STUDY.figure("validation"), curves_by_setting, curves, summary, comparison, **what)
        )
    redrawn = read_redrawn(root)
    if redrawn is not None:
        entries.append(STUDY.table("redrawn", redrawn_table(redrawn)))
    return entries


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
