"""A learning rate for every variant: the best of a grid that extends itself, by one rule for all, on validation data.

The objective's primary metric counts. Each variant is trained with the first seed at every rate of the grid; while its
best rate is the lowest or the highest that was tried, one more beyond it is tried. Then the best and its neighbours are
trained with more seeds, and the best mean is taken, once it is inside, too. The trials are an ordinary comparison in
``tuning/`` of the comparison's directory. What tables report is the test split, which takes no part in the choice. It
is made once, when all trials of a variant are done or have diverged, and recorded in comparison.json. Of a comparison
whose ``rate_seeds`` are 0, which is an older one, the grid is fixed and the first seed decides.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from experiments.config import LARGEST_RATE
from experiments.records.record import TRIALS, read_comparison, run_rows, run_status
from experiments.records.schema import Comparison, VariantRecord
from experiments.records.store import check_runs
from experiments.train.steps import DIVERGED
from experiments.variants import has_own_rate

SEED = 0
MOST_RATES = 9
"""of a grid"""
MOST_BEYOND = 5
"""rates that are tried beyond each edge of a grid"""
LEAST_RATIO = 1.05
"""of a grid's neighbours: what is tried beyond it is rounded to four digits"""

NotTuned = Literal["", "lower edge", "upper edge", "diverged"]


class Search(NamedTuple):
    """How far the search for a variant's rate has come."""

    rates: list[float]
    """that are tried, ascending"""
    seeds: dict[float, Sequence[int]]
    """by rate, those of its trials"""
    missing: list[tuple[float, int]]
    """trials, as (rate, seed), that have to end before it can go on; none: it has ended"""
    figures: dict[float, list[float]]
    """by rate, those of its trials that have ended, NaN of one that diverged"""
    rate: float | None = None
    """the best, of a search that has ended; None: the loss diverged at every rate"""
    not_tuned: NotTuned = ""
    """of a search that has ended: ``VariantRecord.not_tuned``"""


def search(
    grid: Sequence[float],
    seeds: Sequence[int],
    better: str,
    figure: Callable[[float, int], float | None],
    most_beyond: int = MOST_BEYOND,
) -> Search:
    """Follow the rule as far as the trials allow, from the beginning: equal trials lead to an equal choice.

    Args:
        grid: two rates or more, ascending.
        seeds: with the first every rate is tried, with all of them the best and its neighbours.
        better: "lower" or "higher" figures.
        figure: that of a trial, (rate, seed); NaN: it diverged, None: it has not ended.
        most_beyond: rates beyond each edge of the grid.
    """
    ladder, on_all = _ladder(grid, most_beyond), set[float]()
    first, last = ladder.index(grid[0]), ladder.index(grid[-1])
    while True:
        rates = ladder[first : last + 1]
        tried = {rate: seeds if rate in on_all else seeds[:1] for rate in rates}
        figures = {(rate, seed): figure(rate, seed) for rate in rates for seed in tried[rate]}
        ended = {rate: [value for seed in tried[rate] if (value := figures[rate, seed]) is not None] for rate in rates}
        found = Search(rates, tried, [trial for trial, value in figures.items() if value is None], ended)
        if found.missing:
            return found
        means = {rate: sum(values) / len(values) for rate, values in ended.items()}
        alive = [rate for rate in rates if math.isfinite(means[rate])]
        if not alive:
            return found._replace(not_tuned="diverged")
        # A mean is compared with means of as many seeds.
        compared = [rate for rate in alive if rate in on_all] or alive
        best = (min if better == "lower" else max)(compared, key=means.__getitem__)
        if best == ladder[first] and first > 0:
            first -= 1
        elif best == ladder[last] and last < len(ladder) - 1:
            last += 1
        else:
            place = rates.index(best)
            asked = {rate for rate in rates[max(0, place - 1) : place + 2] if rate in alive}
            if asked <= on_all:
                edge: NotTuned = "lower edge" if best == rates[0] else "upper edge" if best == rates[-1] else ""
                return found._replace(rate=best, not_tuned=edge)
            on_all |= asked


def _ladder(grid: Sequence[float], most_beyond: int) -> list[float]:
    """The rates of a grid, and so many beyond each edge at the ratio that is there."""
    below = _beyond(grid[0], grid[0] / grid[1], most_beyond)
    above = _beyond(grid[-1], grid[-1] / grid[-2], most_beyond)
    return [*reversed(below), *grid, *above]


def _beyond(edge: float, ratio: float, most: int) -> list[float]:
    """The rates beyond an edge, up to the first that is none."""
    found = list[float]()
    for number in range(1, most + 1):
        rate = float(f"{edge * ratio**number:.4g}")
        if not 0 < rate <= LARGEST_RATE:
            break
        found.append(rate)
    return found


def fewest_trials(rates: int, seeds: int) -> int:
    """How many trials the rule makes, at the least, with a grid of so many rates if the loss diverges at none.

    The first seed of every rate, and the other ones of the best and its neighbours; it is inside three or more.
    """
    return max(rates, 3) + 3 * (seeds - 1)


def parse_rates(text: str) -> list[float]:
    """The learning rates of a comma-separated list, ascending. Raises ValueError if they are not a grid."""
    try:
        rates = sorted({float(part) for part in text.split(",")})
    except ValueError:
        rates = []
    apart = all(upper >= LEAST_RATIO * lower for lower, upper in pairwise(rates))
    if not (2 <= len(rates) <= MOST_RATES and apart and rates[0] > 0 and rates[-1] <= LARGEST_RATE):
        raise ValueError(
            f"--learning-rates is {text!r}; give two to {MOST_RATES} positive numbers, {LARGEST_RATE:g} or less, that "
            f"differ by a factor of {LEAST_RATIO} or more, such as 0.001,0.002,0.004"
        )
    return rates


def trial_name(variant: str, rate: float) -> str:
    # All digits, so that no two rates have one name.
    return f"{variant}@learning_rate={rate!r}"


def search_of(root: Path, comparison: Comparison, variant: str) -> Search:
    """How far the search for a variant's rate has come by the trials on disk."""
    if not comparison.learning_rates:
        return Search([], {}, [], {})
    config, metric, better = _config(root, comparison), comparison.objective.metric, comparison.objective.better

    def figure(rate: float, seed: int) -> float | None:
        """The metric on the validation split, of the weights that the trial tests.

        One that failed otherwise than by diverging (was killed, say) has not ended: it is repeated.
        """
        run = root / TRIALS, trial_name(variant, rate), seed
        status = run_status(*run)
        if status.state != "done":
            diverged = status.state == "failed" and (status.reason or "").startswith(DIVERGED)
            return math.nan if diverged else None
        rows = [row for row in run_rows(*run) if row.split == "validation"]
        by_step = {row.step: row.metrics[metric] for row in rows if metric in row.metrics}
        if config.get("tested") != "best":
            return by_step.get(config["steps"], math.nan)
        best = min if better == "lower" else max
        return best((value for step, value in by_step.items() if step), default=math.nan)

    seeds = range(SEED, SEED + max(1, comparison.rate_seeds))
    return search(comparison.learning_rates, seeds, better, figure, MOST_BEYOND if comparison.rate_seeds else 0)


def _config(root: Path, comparison: Comparison) -> dict[str, Any]:
    """What the trials are trained with: of a comparison that was given more steps since, those that it had before."""
    if not (root / TRIALS / "comparison.json").exists():
        return comparison.config
    there = read_comparison(root / TRIALS).config
    return comparison.config | {name: there[name] for name in ("steps", "budgets") if name in there}


def trials(root: Path, comparison: Comparison) -> Comparison:
    """The comparison of all trials: every variant whose name does not fix its rate, at every rate that is tried."""
    variants, initial_weights, seeds = [], dict[str, str](), {SEED}
    for variant in comparison.variants if comparison.learning_rates else []:
        if has_own_rate(variant.name):
            continue
        for rate, of_rate in search_of(root, comparison, variant.name).seeds.items():
            name, baseline = trial_name(variant.name, rate), trial_name(variant.baseline, rate)
            settings = variant.settings | {"learning_rate": rate}
            variants.append(replace(variant, name=name, baseline=baseline, settings=settings, not_tuned=""))
            seeds |= {*of_rate}
            for seed in of_rate:
                if begins_with := comparison.initial_weights_of(variant.name, seed):
                    initial_weights[f"{name}/seed{seed}"] = begins_with
    name = f"{comparison.name}, learning rates"
    return replace(
        comparison,
        name=name,
        config=_config(root, comparison),
        notes=[],
        learning_rates=[],
        rate_seeds=0,
        seeds=sorted(seeds),
        variants=variants,
        baseline=None,  # each with its own at the same rate
        initial_weights=initial_weights,
    )


def missing(root: Path, comparison: Comparison) -> list[tuple[str, int]]:
    """The trials, as (variant, seed), that have to end before the search for the rates still to be found goes on."""
    return [
        (trial_name(variant.name, rate), seed)
        for variant in untuned(comparison)
        for rate, seed in search_of(root, comparison, variant.name).missing
    ]


def trials_left(root: Path, comparison: Comparison) -> dict[str, int]:
    """By variant whose rate is still to be found, how many trials are still to be made, at the least."""
    left = {}
    for variant in untuned(comparison):
        found = search_of(root, comparison, variant.name)
        made = sum(map(len, found.seeds.values())) - len(found.missing)
        by_rule = fewest_trials(len(comparison.learning_rates), comparison.rate_seeds) if comparison.rate_seeds else 0
        left[variant.name] = max(len(found.missing), by_rule - made)
    return left


def check_trials(root: Path, comparison: Comparison) -> None:
    """Raises ValueError if a trial was made with something else than the comparison; see ``check_runs``."""
    if comparison.learning_rates:
        check_runs(root / TRIALS, trials(root, comparison))


def untuned(comparison: Comparison) -> list[VariantRecord]:
    """The variants whose learning rate is still to be found."""
    variants = comparison.variants if comparison.learning_rates else []
    return [variant for variant in variants if "learning_rate" not in variant.settings]
