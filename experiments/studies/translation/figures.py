"""The figures, the tables and the samples of the study of translation."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.figures.curves import curve_figure
from experiments.figures.dots import Rows, final_figure, throughput_figure
from experiments.figures.panels import mean_with_interval
from experiments.figures.style import draw, variant_style
from experiments.judge.statistics import estimate, finished_values
from experiments.records.schema import KNOWS_NOTHING, Comparison
from experiments.studies.answers import spread
from experiments.studies.convergence.figures import STUDY as CONVERGENCE
from experiments.studies.translation.answer import shown
from experiments.studies.translation.measure import PUBLISHED, SCORES, SHOWN, TRANSLATIONS
from experiments.study import Entries, read_study
from experiments.train.translation import AS_IT_IS

STUDY = read_study(Path(__file__).parent)
BELOW = 0.24
"""seeds stand this part of a row below the mean"""


def figures(root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame) -> Entries:
    directory, tables = output / "figures", (curves, summary, comparison)
    scores, translations = SCORES.read(root), TRANSLATIONS.read(root)
    recorded = set(curves["split"])
    entries: Entries = []
    if scores is not None:
        words = {"pairs": int(scores["pairs"].max()), "signature": scores["signature"].iloc[-1]}
        entries.append(draw(directory, STUDY.figure("bleu", **words), bleu_figure, scores, summary, comparison))
        entries.append(STUDY.table("bleu", bleu_table(scores, comparison), **words))
    if "validation" in recorded:
        entry = STUDY.figure("validation", windows=comparison.evaluated_windows["validation"])
        entries.append(draw(directory, entry, curve_figure, *tables, "validation"))
    if "train" in recorded:
        entry = STUDY.figure("training", log_every=comparison.config["log_every"])
        entries.append(draw(directory, entry, curve_figure, *tables, "train"))
    values = finished_values(root, comparison, curves)
    if not values.empty:
        entry = STUDY.figure("final", baseline=comparison.baseline_in_words)
        entries.append(draw(directory, entry, final_figure, values, summary, comparison))
        entries.append(
            draw(directory, CONVERGENCE.figure("throughput"), throughput_figure, values, summary, comparison)
        )
    if translations is not None:
        seed = int(translations["seed"].min())
        entries.append(STUDY.table("samples", samples_table(translations, comparison, seed), seed=seed))
    return entries


def bleu_figure(scores: pd.DataFrame, summary: pd.DataFrame, comparison: Comparison) -> Figure:
    """A row per variant: BLEU of every seed, the mean and its interval."""
    rows = Rows(comparison, summary)
    figure, (axes,) = rows.figure(1, "test split")
    for variant, height in zip(rows.variants, rows.heights, strict=True):
        mine = scores.loc[scores["variant"] == variant.name, "bleu"]
        if mine.empty:
            continue
        look, found = variant_style(variant), estimate(mine.tolist())
        if len(mine) > 1:
            axes.plot(mine, [height - BELOW] * len(mine), ".", color=look["color"], markersize=4)
        row: Any = {"mean": found.mean, "low": found.low, "high": found.high}
        mean_with_interval(axes, height, row, look["marker"], 6.5, look["color"])
    axes.set_xlabel("test BLEU")
    return figure


def bleu_table(scores: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """A row of strings per variant, and one for each published figure."""
    data = ", ".join(each.called for each in comparison.data)
    rows = []
    for variant in comparison.variants:
        mine = scores[scores["variant"] == variant.name]
        if len(mine):
            cells = {"data": data, "BLEU": shown(estimate(mine["bleu"].tolist())), "n": str(len(mine))}
            rows.append({"variant": variant.name} | cells)
    for floor in comparison.floors_of("bleu"):
        name = AS_IT_IS if floor.name == KNOWS_NOTHING else floor.name
        rows.append({"variant": f"floor: {name}", "data": data, "BLEU": f"{floor.value:.1f}", "n": "-"})
    published = [
        {"variant": name, "data": "WMT14, as published", "BLEU": f"{value:.1f}", "n": "1"}
        for name, value in PUBLISHED.items()
    ]
    return pd.DataFrame([*rows, *published])


def samples_table(translations: pd.DataFrame, comparison: Comparison, seed: int) -> pd.DataFrame:
    """Rows of strings: of each text itself, its reference, and the translation of each variant with this seed."""
    mine = translations[translations["seed"] == seed]
    rows = []
    for count, place in enumerate(spread(mine["number"].unique(), SHOWN), 1):
        of_text = mine[mine["number"] == place].set_index("variant")
        first = of_text.iloc[0]
        rows += [
            {"by": f"text {count}", "words": first["source"]},
            {"by": "reference", "words": first["reference"]},
        ]
        for variant in comparison.variants:
            if variant.name in of_text.index:
                rows.append({"by": variant.name, "words": of_text.loc[variant.name, "translation"]})
    return pd.DataFrame(rows)
