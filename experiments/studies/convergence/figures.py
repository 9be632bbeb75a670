"""The figures of a convergence comparison."""

from pathlib import Path

import pandas as pd

from experiments.figures.curves import curve_figure, gain_figure, gains, plotted, smoothing
from experiments.figures.dots import final_figure, steps_figure, throughput_figure
from experiments.figures.style import draw
from experiments.judge.statistics import finished_values
from experiments.records.schema import Comparison
from experiments.studies.convergence.overview import overview_figure, overview_variants
from experiments.studies.decay.figures import attention_figures
from experiments.studies.decay.measure import ATTENTION
from experiments.study import Entries, FigureEntry, read_study

STUDY = read_study(Path(__file__).parent)


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    attention = ATTENTION.read(root)
    directory, tables, first = output / "figures", (curves, summary, comparison), Entries()
    if overview_variants(*tables):
        objective = comparison.objective
        entry = STUDY.figure("overview", quantity=objective.quantity, better=objective.better)
        first.append(draw(directory, entry, overview_figure, *tables))
    drawn = convergence_figures(root, *tables, directory)
    return [*first, *drawn, *attention_figures(directory, comparison, attention)]


def convergence_figures(
    root: Path, curves: pd.DataFrame, summary: pd.DataFrame, comparison: Comparison, directory: Path
) -> list[FigureEntry]:
    """Draw and save the figures of the training runs of a comparison into ``directory``, and return their entries.

    ``curves`` and ``summary`` are the tables of curves.csv and summary.csv. Curves of which nothing was recorded are
    left out, and so are the final figures as long as no run finished; a variant that failed is named in every figure.
    """
    config, objective, number = comparison.config, comparison.objective, len(comparison.seeds)
    said = {"number": number, "seeds": "{one_seed}" if number == 1 else "{several_seeds}"}
    metric = {"quantity": objective.quantity, "better": objective.better, "where_better": objective.where_better}
    metric |= {"baseline": comparison.baseline_in_words}
    tables = (curves, summary, comparison)
    recorded = set(curves["split"])
    entries = []
    if "validation" in recorded:
        windows = comparison.evaluated_windows["validation"]
        entry = STUDY.figure("validation", windows=windows, context=config["context"], **said, **metric)
        entries.append(draw(directory, entry, curve_figure, *tables, "validation"))
    if gains(*tables):
        entries.append(draw(directory, STUDY.figure("validation-gain", **said, **metric), gain_figure, *tables))
    if "train" in recorded:
        width, better = smoothing(curves, "train", comparison), plotted(curves, "train", comparison).better
        smoothed = f"Smoothed: each point is the mean of {width} consecutive records." if width > 1 else "Not smoothed."
        words = {"smoothed": smoothed, "better": better, "log_every": config["log_every"]}
        entries.append(draw(directory, STUDY.figure("training", **said, **words), curve_figure, *tables, "train"))
    values = finished_values(root, comparison, curves)
    if not values.empty:
        every = config["evaluate_every"]
        steps = {"evaluate_every": every, "read": comparison.read_in(every)}
        for stem, words, make in (
            ("final", metric, final_figure),
            ("steps-to-baseline", steps, steps_figure),
            ("throughput", {}, throughput_figure),
        ):
            entries.append(draw(directory, STUDY.figure(stem, **words), make, values, summary, comparison))
    return entries
