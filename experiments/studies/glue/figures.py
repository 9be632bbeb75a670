"""The figures and the samples of the study of GLUE, for one task."""

from pathlib import Path

import pandas as pd

from experiments.figures.curves import curve_figure
from experiments.figures.settings import final_by_setting
from experiments.figures.style import draw
from experiments.judge.statistics import finished_values
from experiments.records.schema import Comparison
from experiments.studies.answers import samples
from experiments.studies.glue.answer import BERT
from experiments.study import Entries, read_study

STUDY = read_study(Path(__file__).parent)


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    directory, tables = output / "figures", (curves, summary, comparison)
    quantity = comparison.objective.quantity
    recorded, entries = set(curves["split"]), Entries()
    values = finished_values(root, comparison, curves)
    if not values.empty:
        classes = comparison.objective.classes
        second = f' The second class is "{classes[1]}".' if "second class" in quantity and classes else ""
        entry = STUDY.figure("score", quantity=f"{quantity[0].upper()}{quantity[1:]}", second=second)
        entries.append(draw(directory, entry, final_by_setting, values, summary, comparison, BERT))
    if "validation" in recorded:
        words = {
            "quantity": f"{quantity[0].upper()}{quantity[1:]}",
            "windows": comparison.evaluated_windows["validation"],
        }
        entries.append(draw(directory, STUDY.figure("validation", **words), curve_figure, *tables, "validation"))
    if "train" in recorded:
        entry = STUDY.figure("training", log_every=comparison.config["log_every"])
        entries.append(draw(directory, entry, curve_figure, *tables, "train"))
    return [*entries, *samples(STUDY, root, comparison, told)]


def told(said: "pd.Series[str]") -> dict[str, str]:
    """Who says what, an answer a row, of each that some variant gives."""
    return {f"said: {answer}": ", ".join(said.index[said == answer]) for answer in said.unique()}
