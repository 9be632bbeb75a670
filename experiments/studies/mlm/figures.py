"""The figures of the study of masked tokens."""

from pathlib import Path

import pandas as pd

from experiments.analysis.statistics import finished_values
from experiments.figures.curves import curve_figure
from experiments.figures.settings import loss_entries
from experiments.figures.style import draw
from experiments.records.schema import Comparison
from experiments.studies.decay.figures import attention_figures
from experiments.studies.decay.measure import ATTENTION
from experiments.studies.mlm.answer import BERT
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    directory, tables = output / "figures", (curves, summary, comparison)
    recorded, entries = set(curves["split"]), Entries()
    if "validation" in recorded:
        entry = STUDY.figure("validation", windows=comparison.evaluated_windows["validation"])
        entries.append(draw(directory, entry, curve_figure, *tables, "validation"))
    values = finished_values(root, comparison, curves)
    entries += loss_entries(STUDY, directory, values, summary, comparison, reference=BERT)
    if "train" in recorded:
        entry = STUDY.figure("training", log_every=comparison.config["log_every"])
        entries.append(draw(directory, entry, curve_figure, *tables, "train"))
    return [*entries, *attention_figures(directory, comparison, ATTENTION.read(root))]
