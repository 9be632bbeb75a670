"""A learning rate for every variant: the best of a small grid, equal for all, on the validation split.

The objective's primary metric counts. Each variant is trained with the first seed at every rate, as an ordinary
comparison in ``tuning/`` of the comparison's directory. What tables report is the test split, which takes no part in
the choice. It is made once, when all trials of a variant are done or have diverged, and recorded in comparison.json.
"""

import math
from pathlib import Path

import pandas as pd
from msgspec.structs import replace

from experiments.config import LARGEST_RATE
from experiments.records.record import run_rows, run_status
from experiments.records.schema import Comparison, MetricsRow, VariantRecord
from experiments.records.store import check_runs
from experiments.training.loop import DIVERGED
from experiments.variants import get_variant

DIRECTORY = "tuning"
SEED = 0
MOST_RATES = 9


def rates_caption(comparison: Comparison) -> str:
    objective = comparison.objective
    which = "Best" if comparison.config.get("tested") == "best" else "Final"
    return (
        f"{which} validation {objective.unit} of the trials ({objective.better} is better), one seed each, by peak "
        "learning rate; the variant is trained with the best of them, which is at the edge of the grid where it says "
        "so. The choice is made on the validation split, what is reported is measured on the test split; the seed of "
        "the trials is one of those reported."
    )


def parse_rates(text: str) -> list[float]:
    """The learning rates of a comma-separated list, ascending. Raises ValueError if they are not a grid."""
    try:
        rates = sorted({float(part) for part in text.split(",")})
    except ValueError:
        rates = []
    if not 2 <= len(rates) <= MOST_RATES or not all(0 < rate <= LARGEST_RATE for rate in rates):
        raise ValueError(
            f"--learning-rates is {text!r}; give two to {MOST_RATES} positive numbers, {LARGEST_RATE:g} or less, with "
            "commas between them, such as 0.001,0.002,0.004"
        )
    return rates


def trial_name(variant: str, rate: float) -> str:
    # All digits, so that no two rates have one name.
    return f"{variant}@learning_rate={rate!r}"


def trials(comparison: Comparison) -> Comparison:
    """The comparison in which every variant whose name does not fix its rate is trained at every rate of the grid."""
    variants, initial_weights = [], dict[str, str]()
    for variant in comparison.variants:
        begins_with = comparison.initial_weights_of(variant.name, SEED)
        for rate in () if "learning_rate" in get_variant(variant.name).settings else comparison.learning_rates:
            name, baseline = trial_name(variant.name, rate), trial_name(variant.baseline, rate)
            settings = variant.settings | {"learning_rate": rate}
            variants.append(replace(variant, name=name, baseline=baseline, settings=settings))
            initial_weights |= {f"{name}/seed{SEED}": begins_with} if begins_with else {}
    name = f"{comparison.name}, learning rates"
    return replace(
        comparison,
        name=name,
        notes=[],
        learning_rates=[],
        seeds=[SEED],
        variants=variants,
        initial_weights=initial_weights,
    )


def check_trials(root: Path, comparison: Comparison) -> None:
    """Raises ValueError if a trial was made with something else than the comparison; see ``check_runs``."""
    if comparison.learning_rates:
        check_runs(root / DIRECTORY, trials(comparison))


def untuned(comparison: Comparison) -> list[VariantRecord]:
    """The variants whose learning rate is still to be found."""
    variants = comparison.variants if comparison.learning_rates else []
    return [variant for variant in variants if "learning_rate" not in variant.settings]


def choose(root: Path, comparison: Comparison, variant: str) -> float | None:
    """The rate whose trial has the best validation figure; None if no trial of the variant is done."""
    found = {rate: value for rate, value in trial_figures(root, comparison, variant).items() if math.isfinite(value)}
    best = min if comparison.objective.better == "lower" else max
    return best(found, key=found.__getitem__) if found else None


def have_ended(root: Path, comparison: Comparison, variant: str) -> bool:
    """Whether every trial of a variant is done or diverged; one that failed otherwise (was killed, say) is repeated."""
    trials = (run_status(root / DIRECTORY, trial_name(variant, rate), SEED) for rate in comparison.learning_rates)
    return all(
        trial.state == "done" or (trial.state == "failed" and (trial.reason or "").startswith(DIVERGED))
        for trial in trials
    )


def trial_figures(root: Path, comparison: Comparison, variant: str) -> dict[float, float]:
    """By rate of the grid, the primary metric on the validation split of the weights that the trial tests, or NaN."""
    figures = dict.fromkeys(comparison.learning_rates, math.nan)
    for rate in figures:
        run = root / DIRECTORY, trial_name(variant, rate), SEED
        if run_status(*run).state == "done":
            figures[rate] = _tested_figure(comparison, run_rows(*run))
    return figures


def _tested_figure(comparison: Comparison, rows: list[MetricsRow]) -> float:
    name, steps = comparison.objective.metric, comparison.config["steps"]
    by_step = {row.step: row.metrics[name] for row in rows if row.split == "validation" and name in row.metrics}
    if comparison.config.get("tested") != "best":
        return by_step.get(steps, math.nan)
    best = min if comparison.objective.better == "lower" else max
    return best((value for step, value in by_step.items() if step), default=math.nan)


def rates_table(root: Path, comparison: Comparison) -> pd.DataFrame | None:
    """A row of strings per tuned variant: its trials' validation figures by rate, and the rate it is trained with."""
    if not comparison.learning_rates:
        return None
    rows = []
    for variant in comparison.variants:
        figures = trial_figures(root, comparison, variant.name)
        shown = {str(rate): "-" if math.isnan(value) else f"{value:.3f}" for rate, value in figures.items()}
        chosen = variant.settings.get("learning_rate")
        tried = not all(map(math.isnan, figures.values()))
        edge = " (edge)" if tried and chosen in (min(figures), max(figures)) else ""
        rows.append({"variant": variant.name, **shown, "trained with": f"{chosen or 'not chosen yet'}{edge}"})
    return pd.DataFrame(rows)
