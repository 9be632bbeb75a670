"""The answer of a comparison in a sentence or two with its numbers.

A study with a question of its own brings its own (``Study.answer``); this is everybody else's: what RoPE changes where
variants with and without it were trained, else which variant is the best.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.judge.statistics import Estimate
from experiments.judge.verdicts import NOT_SUPPORTED, SUPPORTED, Row
from experiments.records.schema import Comparison, VariantRecord
from experiments.show.words import ADDED, KERNELS, in_figures, in_words, listed, side

ROPE = ("rope-before", "rope-after")


class Findings(NamedTuple):
    """The numbers and verdicts that an answer is made from."""

    comparison: Comparison
    summary: pd.DataFrame
    """as in summary.csv"""
    rows: Mapping[str, Row]
    """the claims that were judged on it, by key"""
    root: Path
    """of what else was measured"""

    def estimate(self, variant: str, metric: str) -> Estimate:
        """Of a row of the summary; of none, with n = 0."""
        mine = self.summary[(self.summary["variant"] == variant) & (self.summary["metric"] == metric)]
        if mine.empty or not mine["n"].iloc[0]:
            return Estimate(0)
        row: Any = mine.iloc[0]
        return Estimate(int(row["n"]), *(float(row[name]) for name in ("mean", "low", "high", "std")))

    def final(self, variant: str) -> Estimate:
        """The primary metric on the test split."""
        return self.estimate(variant, f"test_{self.comparison.objective.metric}")

    def verdict(self, key: str) -> str:
        """Of a claim; empty if it is not judged here."""
        return self.rows[key].verdict if key in self.rows else ""

    def is_sure(self, key: str) -> bool:
        """Whether the side of zero on which a claimed difference lies is beyond doubt, also if it is the other one."""
        verdict = self.verdict(key)
        if verdict != NOT_SUPPORTED:
            return verdict == SUPPORTED
        found = self.rows[key].estimate
        return found.low * found.high > 0

    def size(self, key: str, pattern: str = ".2f") -> str:
        """How large a claim's quantity is, without its sign; empty if there is none."""
        found = self.rows[key].estimate if key in self.rows else Estimate(0)
        return format(abs(found.mean), pattern) if found.n else ""

    def range(self, keys: Iterable[str], pattern: str = ".2f") -> str:
        """The smallest and the largest size of several claims; empty if there is none."""
        means = sorted(abs(self.rows[key].estimate.mean) for key in keys if self.size(key))
        return " to ".join(dict.fromkeys(format(mean, pattern) for mean in means[:1] + means[-1:]))

    def supported(self, ending: str) -> tuple[int, int]:
        """Of the measured claims whose key ends so: how many are supported, and how many there are."""
        verdicts = [row.verdict for key, row in self.rows.items() if key.endswith(ending) and row.estimate.n]
        return verdicts.count(SUPPORTED), len(verdicts)

    @property
    def finished(self) -> list[VariantRecord]:
        """The variants with a finished run, the best first."""
        done = [variant for variant in self.comparison.variants if self.final(variant.name).n]
        sign = 1 if self.comparison.objective.better == "lower" else -1
        return sorted(done, key=lambda variant: sign * self.final(variant.name).mean)


def _behind(apart: float, comparison: Comparison) -> str:
    """How far apart two values of the primary metric are."""
    if comparison.objective.better == "higher":
        return f"{100 * apart:.1f} points behind" if apart >= 0.0005 else "equal to a tenth of a point"
    return f"{apart:.2f} behind" if apart >= 0.005 else "equal to two digits"


def answer(found: Findings) -> str:
    """What RoPE changes, where that was compared; else which variant is the best."""
    return " ".join(filter(None, [_what_rope_changes(found), best(found)]))


def _what_rope_changes(found: Findings) -> str:
    objective = found.comparison.objective
    sign = -1 if objective.better == "lower" else 1
    names = {variant.name for variant in found.finished}
    best: dict[str, tuple[VariantRecord, Estimate]] = {}
    sides: dict[str, set[str]] = {}
    for variant in found.finished:
        gain = found.estimate(variant.name, f"test_{objective.metric}_minus_baseline")
        is_rope_alone = variant.position in ROPE and not ADDED.keys() & variant.settings.keys()
        if is_rope_alone and found.comparison.baseline_of(variant) == variant.baseline in names and gain.n:
            sides.setdefault(variant.kernel, set()).add(variant.position)
            if variant.kernel not in best or sign * gain.mean > sign * best[variant.kernel][1].mean:
                best[variant.kernel] = variant, gain
    if not best:
        return ""

    def words(variant: VariantRecord, gain: Estimate) -> str:
        aside = f" ({side(variant)})" if variant.kernel != "softmax" else ""
        return f"{KERNELS.get(variant.kernel, variant.kernel)} by {abs(gain.mean):.2f}{aside}"

    ordered = sorted(best.values(), key=lambda each: -sign * each[1].mean)
    measured = "loss" if objective.better == "lower" else objective.metric.replace("_", " ")
    verb, against = (f"{how} the {measured}" for how in (("lowers", "raises") if sign < 0 else ("raises", "lowers")))
    few = [each for each in ordered if not each[1].has_interval]
    better = [each for each in ordered if each not in few and min(sign * each[1].low, sign * each[1].high) > 0]
    worse = [each for each in ordered if each not in few and max(sign * each[1].low, sign * each[1].high) < 0]
    rest = [each for each in ordered if each not in [*few, *better, *worse]]
    sentences = []
    if better:
        every = "every kernel: " if len(better) == len(ordered) > 1 else ""
        sentences.append(f"RoPE {verb} of {every}{listed(words(*each) for each in better)} {objective.unit}.")
    if worse:
        sentences.append(f"RoPE {against} of {listed(words(*each) for each in worse)} {objective.unit}.")
    if rest:
        names_of_rest = listed(KERNELS.get(variant.kernel, variant.kernel) for variant, _ in rest)
        sentences.append(f"For {names_of_rest} {'RoPE' if not sentences else 'it'} makes no clear difference.")
    if few:
        said = listed(f"{KERNELS.get(variant.kernel, variant.kernel)} by {gain.mean:+.2f}" for variant, gain in few)
        sentences.append(f"RoPE changed the {measured} of {said} {objective.unit}, with too few seeds for a verdict.")
    return " ".join(sentences)


def best(found: Findings) -> str:
    """Which variant ends best, and how far behind the best of the other kind of attention is."""
    objective, ranking = found.comparison.objective, found.finished
    if not ranking:
        return ""
    better = "lowest" if objective.better == "lower" else "highest"
    first = ranking[0]
    nearest = next(
        (variant for variant in ranking if (variant.kernel == "softmax") != (first.kernel == "softmax")), None
    )
    said = f"{in_words(first)} ends {better}, at {in_figures(found.final(first.name).mean, found.comparison)}"
    if nearest is not None:
        kind = "softmax variant" if nearest.kernel == "softmax" else "linear variant"
        apart = abs(found.final(nearest.name).mean - found.final(first.name).mean)
        said += f"; the best {kind}, {in_words(nearest)}, is {_behind(apart, found.comparison)}"
    elif len(ranking) > 1:
        worst = "highest" if better == "lowest" else "lowest"
        said += f", {in_words(ranking[-1])} {worst} ({found.final(ranking[-1].name).mean:.3g})"
    return f"{said[0].upper()}{said[1:]}."
