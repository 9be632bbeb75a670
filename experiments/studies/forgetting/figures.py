"""The figures of the study of forgetting."""

from pathlib import Path

import pandas as pd

from experiments.analysis.statistics import finished_values
from experiments.figures.settings import loss_entries
from experiments.records.schema import Comparison
from experiments.studies.decay.figures import attention_figures
from experiments.studies.decay.measure import ATTENTION
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)
REFERENCE = "softmax-rope"


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    directory, values = output / "figures", finished_values(root, comparison, curves)
    losses = loss_entries(STUDY, directory, values, summary, comparison, curves, REFERENCE)
    return [*losses, *attention_figures(directory, comparison, ATTENTION.read(root))]
