"""The rule that turns what was measured for a claim into a verdict; nothing else makes one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from experiments.judge.claims import Claim
from experiments.judge.runs import Runs
from experiments.judge.samples import Sample
from experiments.judge.significance import adjust, certainties, p_values, sign_test
from experiments.judge.statistics import SMALLEST_SAMPLE, Estimate, estimate
from experiments.records.schema import Comparison
from experiments.study import read_toml

ALPHA = 0.05
FEWEST_DIFFERING = 6
"""outcomes that the two-sided sign test needs to be below ``ALPHA``: 2 / 2^6 is 0.03"""

SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE, NOT_RUN = "supported", "not supported", "inconclusive", "not run"
NOT_PART = "it is not part of what was run"
VERDICTS = (SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE, NOT_RUN)

RULE: tuple[str, ...] = tuple(read_toml(Path(__file__).with_suffix(".toml"))["points"])
"""how verdicts are made, a point each"""


class Row(NamedTuple):
    """A claim beside what one comparison says about it."""

    claim: Claim
    reference: str
    """name of the comparison's directory"""
    data: str
    """names of the comparison's data sets, or the claim's own"""
    size: str
    """how large the comparison's models and runs are, or the claim's own"""
    estimate: Estimate
    """of an exact quantity with the smallest and the largest value for bounds"""
    unit: str
    """what was counted, in the plural: seeds, draws, rounds"""
    p: float
    """adjusted by Holm's method; NaN where no test was made"""
    verdict: str
    """one of ``VERDICTS``"""
    remark: str
    """why there is no verdict, and what a reader has to know; may be empty"""

    @property
    def was_asked(self) -> bool:
        """Whether the comparison has what the claim is about."""
        return self.remark != NOT_PART

    @property
    def mean(self) -> str:
        """Mean and interval, of an exact quantity the range; a dash for nothing."""
        found = self.estimate
        if self.claim.kind == "exact" and found.n:
            mean, low, high = map(self.claim.show, (found.mean, found.low, found.high))
            return mean if low == high else f"{mean} on average ({low} to {high})"
        return found.show(self.claim.pattern)

    @property
    def measured(self) -> str:
        """The same with the number of values and the adjusted p."""
        if self.estimate.n == 0:
            return self.mean
        p = "" if isnan(self.p) else ", adjusted p < 0.0001" if self.p < 1e-4 else f", adjusted p = {self.p:.2g}"
        tested = ", exact" if self.claim.kind == "exact" else p
        unit = self.unit.removesuffix("s") if self.estimate.n == 1 else self.unit
        return f"{self.mean}, n = {self.estimate.n} {unit}{tested}"


def evaluate(
    claims: Sequence[Claim],
    root: Path,
    comparison: Comparison | None,
    curves: pd.DataFrame | None,
    *,
    reference: str,
) -> list[Row]:
    """A row for every claim of a study, judged on one comparison; ``comparison`` None: nothing of it is there.

    Raises:
        ValueError: two claims share a key, or a file that a sample is read from is damaged.
    """
    twice = [key for key, number in Counter(claim.key for claim in claims).items() if number > 1]
    if twice:
        raise ValueError(f"CLAIMS has a key twice: {twice[0]}")
    samples: list[Sample | None] = [None] * len(claims)
    data = of_comparison = ""
    if comparison is not None and curves is not None:
        runs = Runs(root, comparison, curves)
        claims = [claim.of(comparison) for claim in claims]
        samples = [claim.sample(root, comparison, runs) for claim in claims]
        data, of_comparison = ", ".join(each.name for each in comparison.data), size(comparison)
    tests = [_test(claim, sample) for claim, sample in zip(claims, samples, strict=True)]
    adjusted: dict[str, tuple[float, float]] = {}
    for family in {claim.family for claim in claims}:
        members = {claim.key: sides for claim, (sides, _) in zip(claims, tests, strict=True) if claim.family == family}
        adjusted |= zip(members, adjust([*members.values()]), strict=True)
    rows = []
    for claim, sample, (sides, why) in zip(claims, samples, tests, strict=True):
        verdict, p, remarks = _judge(claim, sample, adjusted[claim.key] if sides else None, why)
        found, unit = estimate_of(claim, sample), sample.unit_of_sample if sample else "seeds"
        where = reference, claim.data or data, claim.size or of_comparison
        rows.append(Row(claim, *where, found, unit, p, verdict, ". ".join(filter(None, remarks))))
    return rows


def size(comparison: Comparison) -> str:
    """How large a comparison's models and runs are; of one that trains nothing, its preset."""
    if not comparison.variants:
        return f"preset {comparison.preset}"
    config, rates = comparison.config, len(comparison.learning_rates)
    layers, width = (config.get(name, "?") for name in ("layers", "dim"))
    tuned = f"each variant's best of {rates} learning rates" if rates else "one learning rate for all variants"
    if comparison.rate_seeds:
        tuned = f"each variant's best learning rate, searched from {rates}"
    return (
        f"{layers} layer{'s' * (layers != 1)}, width {width}, {config['steps']:,} steps of {comparison.read_in(1)}, "
        f"context {comparison.contexts}, {tuned}"
    )


def estimate_of(claim: Claim, sample: Sample | None) -> Estimate:
    """Mean and interval of a sample.

    What is exact has the smallest and the largest value for bounds; outcomes, and equal values whose resolution is not
    known, have no interval.
    """
    values = [*sample.values.values()] if sample else []
    found = estimate(values, smallest_std=claim.resolution, pooled=sample.pooled if sample else None)
    if claim.kind == "exact" and values:
        return Estimate(found.n, found.mean, min(values), max(values), 0.0)
    if not found.has_interval:
        return found
    if claim.kind == "count" or (min(values) == max(values) and not claim.resolution):
        return Estimate(found.n, found.mean)
    least, most = claim.limits
    return replace(found, low=max(found.low, least), high=min(found.high, most))


def _test(claim: Claim, sample: Sample | None) -> tuple[tuple[float, float] | None, str]:
    """The two p of a sample that is whole; or None, and why its values, though all are there, allow no verdict."""
    if sample is None or sample.unfinished or sample.lost:
        return None, ""
    values = list(sample.values.values())
    told = "; ".join(sample.unlearnt.values())
    if sample.unjudged or (told and len(sample.unlearnt) == len(sample.about)):
        return None, sample.unjudged or f"nothing was learnt that could be compared: {told}"
    if len(values) < SMALLEST_SAMPLE:
        return None, f"too few {sample.unit_of_sample}: {len(values)}, and {SMALLEST_SAMPLE} are needed"
    if claim.kind == "count":
        return (sign_test(values, claim.region), "") if any(values) else (None, _too_few_differed(sample))
    if claim.kind == "exact":
        return certainties(values, claim.region, claim.margin), ""
    if not claim.resolution and min(values) == max(values):
        return None, "all values are equal"
    inside, outside = p_values(values, claim.region, claim.margin, claim.resolution, sample.pooled)
    if told and inside < outside and claim.region[0] < 0 < claim.region[1]:
        return None, f"one is as good as the other, but not both have learnt something: {told}"
    return (inside, outside), ""


def _too_few_differed(sample: Sample) -> str:
    """Why outcomes cannot decide anything; empty if they can."""
    differing, unit = sum(map(bool, sample.values.values())), sample.unit_of_sample
    said = f"{differing} of {sample.planned} {unit} differed, and a sign test needs {FEWEST_DIFFERING}"
    return said if differing < FEWEST_DIFFERING else ""


def _judge(
    claim: Claim, sample: Sample | None, sides: tuple[float, float] | None, why: str
) -> tuple[str, float, list[str]]:
    """The verdict, the p that it follows from, and remarks, some empty. ``sides`` are adjusted; None: ``why`` not."""
    if sample is None:
        return NOT_RUN, nan, [NOT_PART]
    planned = f"of {sample.planned} {sample.unit_of_sample}"
    lost = f"{len(sample.lost)} {planned} have no value: {'; '.join(sample.lost)}" if sample.lost else ""
    if sample.unfinished:
        return NOT_RUN, nan, [f"{sample.unfinished} {planned} are missing or unfinished", lost, *sample.notes]
    if sides is None:
        return INCONCLUSIVE, nan, [why, lost, *sample.notes]
    inside, outside = sides
    few = _too_few_differed(sample) if claim.kind == "count" else ""
    if outside < ALPHA:
        within = "it lies in the range, but by less than the smallest amount that matters" if inside < ALPHA else ""
        return NOT_SUPPORTED, outside, [within, few, *sample.notes]
    return SUPPORTED if inside < ALPHA else INCONCLUSIVE, min(inside, outside), [few, *sample.notes]
