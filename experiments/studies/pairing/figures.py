"""The figures of the pairing study."""

from pathlib import Path

import pandas as pd

from experiments.analysis.statistics import finished_values
from experiments.figures.settings import curves_by_setting, final_by_setting
from experiments.figures.style import draw
from experiments.records.schema import Comparison
from experiments.studies.pairing.measure import SHOWN_FEATURES, read_variance
from experiments.studies.pairing.study import STUDY
from experiments.studies.pairing.variance import variance_figure
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
    variance = read_variance(root)
    if variance is not None:
        entries.append(draw(directory, STUDY.figure("variance"), variance_figure, variance, SHOWN_FEATURES))
    return entries
