"""The numbers of a comparison: one value per finished run, then mean and interval per variant.

Seeds are the sample. Everything that compares two variants is paired by seed, because both variants saw the same
batches and started from the same shared weights. Intervals are two-sided 95 % Student's t intervals of the mean. Below
three seeds there is none: it says nothing, and percentile bootstraps of so few values cover too little.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite, isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from experiments.judge.curves import by_run, read_curves
from experiments.records.record import packed_speeds, planned_runs, run_status
from experiments.records.schema import NEXT_BYTE, Comparison, VariantRecord

SMALLEST_SAMPLE = 3
LOSS = NEXT_BYTE.metric
UNITS = {"steps_to_baseline": "steps", "tokens_to_baseline": "tokens", "tokens_per_second": "tokens per second"}
"""of the metrics that every comparison has besides the compared ones and the exact ones"""
EXACT = ("parameters", "position_parameters")
SUMMARY_COLUMNS = [
    *("variant", "metric", "unit", "n", "mean", "low", "high", "std"),
    *("seeds", "reached", "planned", "failed", "unfinished", "reasons", "beats"),
]


@dataclass(frozen=True)
class Estimate:
    """Mean of ``n`` values; ``std`` needs two of them, the interval from ``low`` to ``high`` three; else NaN."""

    n: int
    mean: float = nan
    low: float = nan
    high: float = nan
    std: float = nan

    @property
    def has_interval(self) -> bool:
        return isfinite(self.low)

    def show(self, pattern: str, least: float = -inf, most: float = inf) -> str:
        """mean [low, high], the interval cut at these; without one the mean alone, a dash for nothing."""
        return with_interval(self.mean, max(self.low, least), min(self.high, most), pattern) if self.n else "-"


def with_interval(mean: float, low: float, high: float, pattern: str) -> str:
    """mean [low, high]; without an interval the mean alone."""
    return format(mean, pattern) if isnan(low) else f"{mean:{pattern}} [{low:{pattern}}, {high:{pattern}}]"


class Spread(NamedTuple):
    """An estimated standard deviation, and its number of degrees of freedom."""

    std: float
    degrees: int


def spreads_of(values: Sequence[float], smallest_std: float = 0.0, pooled: Spread | None = None) -> list[Spread]:
    """The spreads that two or more values are judged by: their own, no less than ``smallest_std``, and a pooled one."""
    own = Spread(max(float(np.std(values, ddof=1)), smallest_std), len(values) - 1)
    return [own] if pooled is None else [own, Spread(max(pooled.std, smallest_std), pooled.degrees)]


def pooled_spread(groups: Iterable[Sequence[float]]) -> Spread:
    """The spread within groups, taken together: √(Σ (x - mean of its group)² / Σ (n - 1)); NaN where all have n = 1."""
    larger = [values for values in groups if len(values) > 1]
    degrees = sum(len(values) - 1 for values in larger)
    squares = sum(float(np.var(values, ddof=1)) * (len(values) - 1) for values in larger)
    return Spread((squares / degrees) ** 0.5 if degrees else nan, degrees)


def estimate(values: Sequence[float], smallest_std: float = 0.0, pooled: Spread | None = None) -> Estimate:
    """Mean of the values with its Student's t interval: mean ± t(0.975, degrees) · std / √n.

    Of two spreads (``spreads_of``) the one with the wider interval counts.
    """
    n = len(values)
    if n == 0:
        return Estimate(0)
    mean = float(np.mean(values))
    if n == 1:
        return Estimate(1, mean)
    spreads = spreads_of(values, smallest_std, pooled)
    if n < SMALLEST_SAMPLE:
        return Estimate(n, mean, std=max(spreads).std)
    width, std = max((float(stats.t.ppf(0.975, degrees)) * std, std) for std, degrees in spreads)
    half = width / n**0.5
    return Estimate(n, mean, mean - half, mean + half, std)


def estimates(table: pd.DataFrame, by: str | list[str], column: str) -> pd.DataFrame:
    """``estimate`` of a column by group: a row each, its columns n, mean, low, high and std."""
    found = {key: asdict(estimate(list(values))) for key, values in table.groupby(by)[column]}
    return pd.DataFrame(found, index=["n", "mean", "low", "high", "std"]).T.rename_axis(by)


def first_at_or_below(curve: "pd.Series[float]", target: float) -> float:
    """The first index (a step) at which the curve is at or below the target; NaN if it never is."""
    return float(curve[curve <= target].index.min())


def run_states(root: Path, comparison: Comparison, curves: pd.DataFrame) -> pd.DataFrame:
    """Every run that is planned with its ``state`` and ``reason``.

    The state is that of status.json, but a run counts as done only with its test figure on record.
    """
    tests = curves[(curves["split"] == "test") & (curves["metric"] == comparison.objective.metric)]
    tested = set(zip(tests["variant"], tests["seed"], strict=True))
    rows = []
    for variant, seed in planned_runs(root, comparison):
        status = run_status(root, variant, seed)
        state, reason = str(status.state), status.reason
        if state == "done" and (variant, seed) not in tested:
            state, reason = "unfinished", "its status is done, but no test figure is on record"
        rows.append((variant, seed, state, reason or ""))
    return pd.DataFrame.from_records(rows, columns=["variant", "seed", "state", "reason"])


def finished_values(root: Path, comparison: Comparison, curves: pd.DataFrame) -> pd.DataFrame:
    """One row per value of a finished run: variant, metric, seed, value.

    ``steps_to_baseline`` and ``tokens_to_baseline`` have a row for every run whose baseline finished with the same
    seed; the value is NaN where the run never reached the baseline's final validation figure.
    """
    states, units, primary = run_states(root, comparison, curves), compared(comparison, curves), comparison.objective
    done = {*states.loc[states["state"] == "done", ["variant", "seed"]].itertuples(index=False, name=None)}
    records, speeds = by_run(curves), packed_speeds(root, comparison)
    # The loss, where there is one: every accuracy that stays at chance is at once where its baseline ends.
    main, is_lower = next(iter(units)), primary.better == "lower"
    sign = 1 if main == LOSS or is_lower else -1

    def by_seed(variant: str, metric: str) -> "dict[int, pd.Series[float]]":
        found = {seed: records[variant, seed] for seed in comparison.seeds if (variant, seed) in done}
        return {seed: record.curve(metric) for seed, record in found.items() if record.has(metric)}

    def ends(variant: str, metric: str) -> dict[int, float]:
        return {seed: float(curve.iloc[-1]) for seed, curve in by_seed(variant, metric).items()}

    def validated(variant: str, metric: str) -> dict[int, float]:
        """On the validation split, of the weights that are tested."""
        if comparison.config.get("tested") != "best":
            return ends(variant, f"validation_{metric}")
        judged = by_seed(variant, f"validation_{primary.metric}")
        later = {seed: curve[curve.index > 0] for seed, curve in judged.items() if curve.index[-1] > 0}
        tested: dict[int, Any] = {seed: rest.idxmin() if is_lower else rest.idxmax() for seed, rest in later.items()}
        shown = by_seed(variant, f"validation_{metric}")
        return {seed: curve[tested[seed]] for seed, curve in shown.items() if tested.get(seed) in curve.index}

    rows: list[tuple[str, str, int, float]] = []
    for variant in comparison.variants:
        name = variant.name
        values: dict[str, dict[int, float]] = {}
        for metric in units:
            values[f"test_{metric}"] = mine = ends(name, f"test_{metric}")
            values[f"validation_{metric}"] = validated(name, metric)
            for contrast, other in contrasts(variant, comparison, metric):
                theirs = ends(other, f"test_{metric}")
                values[contrast] = {seed: value - theirs[seed] for seed, value in mine.items() if seed in theirs}
        targets = validated(comparison.baseline_of(variant), main)
        values["steps_to_baseline"] = steps = {
            seed: first_at_or_below(sign * curve, sign * targets[seed])
            for seed, curve in by_seed(name, f"validation_{main}").items()
            if seed in targets
        }
        per_step = int(comparison.config["batch_size"]) * comparison.context_of(variant)
        values["tokens_to_baseline"] = {seed: step * per_step for seed, step in steps.items()}
        rates = by_seed(name, "train_tokens_per_second")
        values["tokens_per_second"] = {seed: speeds.get((name, seed), rate.median()) for seed, rate in rates.items()}
        for metric, of_seed in values.items():
            rows += [(name, metric, seed, float(value)) for seed, value in sorted(of_seed.items())]
    return pd.DataFrame.from_records(rows, columns=["variant", "metric", "seed", "value"])


def compared(comparison: Comparison, curves: pd.DataFrame) -> dict[str, str]:
    """The metrics that are summarised, with their units: the loss where it is recorded, and the primary one."""
    primary = comparison.objective
    recorded = primary.metric == LOSS or bool((curves["metric"] == LOSS).any())
    return ({LOSS: NEXT_BYTE.unit} if recorded else {}) | {primary.metric: primary.unit}


def contrasts(variant: VariantRecord, comparison: Comparison, metric: str) -> list[tuple[str, str]]:
    """The paired differences of a metric that are reported for a variant, as (name, variant subtracted).

    Every variant against its baseline (``Comparison.baseline_of``), and RoPE after the map against RoPE before it,
    where both variants were run. Those two have the same settings, but for a learning rate that was found for each
    variant by tuning.
    """

    def settings(variant: VariantRecord) -> dict[str, Any]:
        fixed = "@learning_rate=" in variant.name
        return {name: value for name, value in variant.settings.items() if fixed or name != "learning_rate"}

    others = [other for other in comparison.variants if other.name != variant.name]
    baseline = comparison.baseline_of(variant)
    found = [(f"test_{metric}_minus_baseline", baseline)] if baseline in (other.name for other in others) else []
    if variant.position == "rope-after":
        found += [
            (f"test_{metric}_minus_rope_before", other.name)
            for other in others
            if (other.kernel, other.position) == (variant.kernel, "rope-before")
            and settings(other) == settings(variant)
        ]
    return found


def summarise(root: Path, comparison: Comparison, curves: pd.DataFrame | None = None) -> pd.DataFrame:
    """The table of summary.csv: one row per variant and metric.

    ``n`` counts finished runs only (for paired metrics: seeds finished in both variants) and ``seeds`` names them.
    ``planned``, ``failed``, ``unfinished`` and ``reasons`` say what became of the variant's other runs. ``reached`` is
    set for the metrics that end in ``_to_baseline``: the number of the ``n`` seeds that got there. Their mean is given
    only when all did, because the mean of those that happened to would flatter the variant. ``beats`` is set for test
    metrics with floors: the best one on equal ground that a mean is clearly better than, by its interval if it has one;
    "nothing" if it is better than none, and empty where no run is finished.
    """
    curves = read_curves(root, comparison) if curves is None else curves
    states, values = run_states(root, comparison, curves), finished_values(root, comparison, curves)
    rows = []
    for variant in comparison.variants:
        mine = values[values["variant"] == variant.name]
        runs = states[states["variant"] == variant.name]
        others = runs[runs["state"] != "done"]
        failed = int((others["state"] == "failed").sum())
        counts = {"planned": len(runs), "failed": failed, "unfinished": len(others) - failed}
        told = {"variant": variant.name, "reasons": _reasons(others)} | counts
        units: dict[str, str] = {}
        for metric, unit in compared(comparison, curves).items():
            names = [name for name, _ in contrasts(variant, comparison, metric)]
            units |= dict.fromkeys((f"test_{metric}", f"validation_{metric}", *names), unit)
        for metric, unit in (units | UNITS).items():
            row = _row(mine[mine["metric"] == metric], metric)
            if metric.startswith("test_"):
                row["beats"] = _beaten(comparison, metric.removeprefix("test_"), row)
            rows.append(told | {"metric": metric, "unit": unit} | row)
        for metric in EXACT:
            rows.append(told | {"metric": metric, "unit": "parameters", "n": 1, "mean": getattr(variant, metric)})
    columns = [name for name in SUMMARY_COLUMNS if name != "beats" or comparison.every_floor]
    table = pd.DataFrame(rows, columns=columns)
    return table.astype({"reached": "Int64"}).fillna({"seeds": "", "beats": ""})


def _beaten(comparison: Comparison, metric: str, found: Mapping[str, Any]) -> str:
    if comparison.best_floor(metric) is None or not found["n"]:
        return ""
    ends = [found["low"], found["high"]] if isfinite(found["low"]) else [found["mean"]]
    floor = comparison.beaten(metric, ends)
    return floor.name if floor else "nothing"


def _row(sample: pd.DataFrame, metric: str) -> dict[str, Any]:
    """The statistics of one variant's values of one metric, as columns of the summary."""
    row: dict[str, Any] = {"n": len(sample), "seeds": " ".join(map(str, sample["seed"]))}
    reached = sample["value"].dropna()
    if metric.endswith("_to_baseline"):
        row["reached"] = len(reached)
    return row | (asdict(estimate(reached.tolist())) if len(reached) == len(sample) else {})


def _reasons(runs: pd.DataFrame) -> str:
    """What became of these runs, equal reasons told once."""
    told = runs["reason"].where(runs["reason"] != "", runs["state"])
    seeds: Any = runs["seed"].astype(str).groupby(told, sort=False)
    return "; ".join(f"seed{'s' * (len(which) > 1)} {', '.join(which)}: {reason}" for reason, which in seeds)
