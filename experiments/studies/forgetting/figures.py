"""The figures of the study of forgetting."""

from pathlib import Path

import pandas as pd

from experiments.analysis.statistics import finished_values
from experiments.figures.settings import loss_entries
from experiments.figures.style import draw
from experiments.records.schema import Comparison
from experiments.studies.decay.figures import attention_by_setting
from experiments.studies.decay.measure import ATTENTION
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)
REFERENCE = "softmax-rope"


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    directory, values = output / "figures", finished_values(root, comparison, curves)
    entries = loss_entries(STUDY, directory, values, summary, comparison, curves, REFERENCE)
    attention = ATTENTION.read(root)
    if attention is not None:
        entries.append(draw(directory, STUDY.figure("attention"), attention_by_setting, attention, comparison))
    return entries
