"""The learning rates that were tried: the validation figures of each variant's trials, as rows and as a table."""

import math
from pathlib import Path

import pandas as pd

from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.show.rows import Rows
from experiments.train.tuning import search_of


def trials(root: Path) -> pd.DataFrame | None:
    """Of each variant's rates that did not diverge: ``variant``, ``seed``, ``rate``, ``value``; None of a fixed grid.

    But none that is worse than each variant's best rate and those beside it: rates far too high would flatten all.
    """
    comparison = read_comparison(root)
    if not comparison.rate_seeds:
        return None
    sign, figures, limit = (1 if comparison.objective.better == "lower" else -1), [], -math.inf
    for variant in comparison.variants:
        tried = search_of(root, comparison, variant.name).figures
        means = {rate: sign * math.fsum(values) / len(values) for rate, values in tried.items() if values}
        means = {rate: mean for rate, mean in means.items() if math.isfinite(mean)}
        place = [*means].index(min(means, key=means.__getitem__)) if means else 0
        limit = max([limit, *[*means.values()][max(0, place - 1) : place + 2]])
        figures += [(variant.name, rate, mean, tried[rate]) for rate, mean in means.items()]
    rows = [
        (name, seed, rate, value)
        for name, rate, mean, values in figures
        if mean <= limit
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["variant", "seed", "rate", "value"])


def table(rows: Rows) -> pd.DataFrame | None:
    """A row of strings per tuned variant: its trials' validation figures by rate, and the rate it is trained with."""
    root, comparison = rows.root, rows.comparison
    if not comparison.learning_rates:
        return None
    names = [variant.name for variant in comparison.variants]
    figures = {name: search_of(root, comparison, name).figures for name in names}
    rates = sorted({rate for of_variant in figures.values() for rate in of_variant})
    shown = []
    for variant in comparison.variants:
        mine, chosen = figures[variant.name], variant.settings.get("learning_rate")
        remark = f" (not tuned: {variant.not_tuned})" if variant.not_tuned else ""
        tried = any(math.isfinite(value) for values in mine.values() for value in values)
        if not comparison.rate_seeds and tried and chosen in (rates[0], rates[-1]):
            remark = " (edge)"
        cells = {str(rate): _cell(mine.get(rate, []), comparison) for rate in rates}
        shown.append({"variant": variant.name, **cells, "trained with": f"{chosen or 'not chosen yet'}{remark}"})
    return pd.DataFrame(shown)


def _cell(figures: list[float], comparison: Comparison) -> str:
    if not figures:
        return "-"
    if any(map(math.isnan, figures)):
        return "diverged" if comparison.rate_seeds else "-"
    mean = f"{sum(figures) / len(figures):.3f}"
    return mean if len(figures) == 1 else f"{mean} ({len(figures)})"
