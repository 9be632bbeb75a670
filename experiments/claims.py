"""Published claims as intervals of a measured quantity, and the rule that turns samples into verdicts.

An experiment lists its ``CLAIMS``. ``evaluate`` reads the sample of each from a comparison's files and judges it by
``RULE``; nothing else makes a verdict. samples.py has the samples that most claims need.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from experiments.stats import SMALLEST_SAMPLE, Estimate, estimate

ALPHA = 0.05
LARGEST = 1e100
"""what a measured quantity cannot exceed; squares of more would overflow"""

SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE, NOT_RUN = "supported", "not supported", "inconclusive", "not run"
VERDICTS = (SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE, NOT_RUN)

RULE = (
    "Rule: a claim says in which range the mean of a measured quantity lies. A one-sided Student t test asks whether "
    "the mean lies in that range (with two ends: at both, the larger p counts), another whether it lies outside, or "
    "inside by less than the smallest amount that matters. The smaller p is doubled, because either could have come "
    "out, and adjusted by Holm's method for all claims that were declared for the same comparison and family, whether "
    "or not they were measured; one without a verdict counts with p = 1. Below 0.05 the claim is supported or not "
    "supported, as the test with the smaller p says; otherwise it is inconclusive. It is inconclusive too with fewer "
    "than three values, or where one that was planned failed. It is not run where anything planned is missing or "
    "unfinished. In brackets: the 95 % interval of the mean (Student's t), which is not adjusted."
)


@dataclass(frozen=True)
class Sample:
    """What was measured for one claim.

    Raises:
        ValueError: a value is not finite or beyond 1e100, or more came than were planned.
    """

    values: Mapping[int, float]
    """the quantity by seed (or draw, or round): a paired difference, say"""
    planned: int
    """how many values there were to be"""
    lost: tuple[str, ...] = ()
    """a sentence for each planned value that failed; no value and no sentence means not measured yet"""
    unit_of_sample: str = "seeds"
    """what the values are of, in the plural: seeds, draws, rounds"""
    notes: tuple[str, ...] = ()
    """what a reader has to know of the values, a sentence each"""

    def __post_init__(self) -> None:
        for key, value in self.values.items():
            if not abs(value) <= LARGEST:
                raise ValueError(f"values[{key}] is {value}; give a finite number up to {LARGEST:g}")
        if len(self.values) + len(self.lost) > self.planned:
            raise ValueError(
                f"planned is {self.planned}, and there are {len(self.values)} values and {len(self.lost)} lost ones; "
                "give the number of all"
            )

    @property
    def unfinished(self) -> int:
        """How many planned values are neither there nor lost."""
        return self.planned - len(self.values) - len(self.lost)


ReadSample = Callable[[Path, dict[str, Any], pd.DataFrame], Sample | None]
"""(directory, comparison, curves) -> the sample; None if the comparison holds nothing of it. ValueError names a damaged
file."""


@dataclass(frozen=True)
class Claim:
    """A published claim, and the quantity that decides it.

    Raises:
        ValueError: a field is not as described.
    """

    key: str
    """short, unique within its experiment"""
    statement: str
    """the claim, one sentence"""
    published: str
    """what was published and where (paper, section or figure, arXiv id); "none found" where nothing was"""
    quantity: str
    """what is measured, in words, with its unit"""
    region: tuple[float, float]
    """the claim holds where the quantity lies between these; one of them may be infinite"""
    margin: float
    """the smallest amount that matters, above 0, in the quantity's unit; less than half of the region's width"""
    sample: ReadSample
    pattern: str = "+.3f"
    """format of the quantity"""
    family: str = ""
    """Holm's correction is within a comparison and family"""

    def __post_init__(self) -> None:
        low, high = self.region
        if not low < high or (low, high) == (-inf, inf):
            raise ValueError(
                f"{self.key}: region is {self.region}; give (low, high) with low < high, one of them finite"
            )
        if not 0 < self.margin < (high - low) / 2 or not isfinite(self.margin):
            raise ValueError(f"{self.key}: margin is {self.margin}; give more than 0 and less than half of the region")
        self.show(0.0)

    def show(self, value: float) -> str:
        """The value as text."""
        return format(value, self.pattern)

    @property
    def criterion(self) -> str:
        """Where the claim holds, in words."""
        low, high = ("0" if bound == 0 else self.show(bound) for bound in self.region)
        if self.region[0] == -inf:
            where = f"below {high}"
        elif self.region[1] == inf:
            where = f"above {low}"
        else:
            where = f"between {low} and {high}"
        return f"the claim holds {where}; {self.show(self.margin).lstrip('+')} is the smallest amount that matters"


@dataclass(frozen=True)
class Row:
    """A claim beside what one comparison says about it."""

    claim: Claim
    reference: str
    """name of the comparison's directory"""
    data: str
    """names of its data sets"""
    size: str
    """how large its models and runs are"""
    estimate: Estimate
    p: float
    """adjusted by Holm's method; NaN where no test was made"""
    verdict: str
    """one of ``VERDICTS``"""
    remark: str
    """why there is no verdict, and what a reader has to know; may be empty"""
    command: str
    """what measures it"""

    @property
    def source(self) -> str:
        """Where it was measured: the comparison, its data and its size."""
        return "; ".join(part for part in (self.reference, self.data, self.size) if part)

    @property
    def measured(self) -> str:
        """Mean, interval, number of values and adjusted p; a dash where nothing was measured."""
        found = self.estimate
        if found.n == 0:
            return "-"
        show = self.claim.show
        interval = f" [{show(found.low)}, {show(found.high)}]" if found.has_interval else ""
        return f"{show(found.mean)}{interval}, n = {found.n}" + ("" if np.isnan(self.p) else f", {_show_p(self.p)}")


def evaluate(
    claims: Sequence[Claim],
    root: Path,
    comparison: dict[str, Any] | None,
    curves: pd.DataFrame | None,
    *,
    reference: str,
    command: str,
) -> list[Row]:
    """A row for every claim of an experiment, judged on one comparison; ``comparison`` None: nothing of it is there.

    Raises:
        ValueError: two claims share a key, or a file that a sample is read from is damaged.
    """
    keys = [claim.key for claim in claims]
    if len(set(keys)) < len(keys):
        raise ValueError(f"CLAIMS has a key twice: {', '.join(sorted({key for key in keys if keys.count(key) > 1}))}")
    samples: list[Sample | None] = [None] * len(claims)
    if comparison is not None and curves is not None:
        samples = [claim.sample(root, comparison, curves) for claim in claims]
    sides = [_sides(claim, sample) for claim, sample in zip(claims, samples, strict=True)]
    adjusted = [nan] * len(claims)
    for family in {claim.family for claim in claims}:
        members = [index for index, claim in enumerate(claims) if claim.family == family]
        doubled = [2 * min(sides[index] or (1, 1)) for index in members]
        for index, p in zip(members, holm(doubled), strict=True):
            adjusted[index] = p
    data = ", ".join(each["name"] for each in comparison["data"]) if comparison else ""
    rows = []
    for claim, sample, both, p in zip(claims, samples, sides, adjusted, strict=True):
        verdict, remark = _judge(sample, both, p)
        rows.append(
            Row(
                claim=claim,
                reference=reference,
                data=data,
                size=size(comparison) if comparison else "",
                estimate=estimate_of(sample),
                p=nan if both is None else p,
                verdict=verdict,
                remark=remark,
                command=command,
            )
        )
    return rows


def p_values(values: Sequence[float], region: tuple[float, float], margin: float) -> tuple[float, float]:
    """One-sided p of "the mean is in the region", and of "it is not, or by less than the margin".

    Of two or more values. Without variance each is 0 or 1. The alternative of the second test is a union where the
    region has two ends: its p is the smaller of two, doubled.
    """
    low, high = region
    inside = [_p_above(values, low)] * isfinite(low) + [_p_below(values, high)] * isfinite(high)
    outside = [_p_below(values, low + margin)] * isfinite(low) + [_p_above(values, high - margin)] * isfinite(high)
    return max(inside), min(1.0, len(outside) * min(outside))


def holm(p: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm's method, in their order: the largest of (m - j + 1)·p_(j) up to each, at most 1."""
    adjusted = [1.0] * len(p)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = largest
    return adjusted


def size(comparison: dict[str, Any]) -> str:
    """How large a comparison's models and runs are; of one that trains nothing, its preset."""
    if not comparison["variants"]:
        return f"preset {comparison['preset']}"
    config = comparison["config"]
    layers, width = (config.get(name, "?") for name in ("layers", "dim"))
    tokens = config["batch_size"] * config["context"]
    rates = comparison.get("learning_rates")
    tuned = f"each arm's best of {len(rates)} learning rates" if rates else "one learning rate for all arms"
    return (
        f"{layers} layer{'s' * (layers != 1)}, width {width}, {config['steps']:,} steps of {tokens:,} tokens, {tuned}"
    )


def estimate_of(sample: Sample | None) -> Estimate:
    """Mean and interval of a sample; equal values have exactly their value for mean and bounds."""
    values = [] if sample is None else list(sample.values.values())
    if len(values) >= SMALLEST_SAMPLE and min(values) == max(values):
        return Estimate(len(values), values[0], values[0], values[0], 0.0)
    return estimate(values)


def _p_above(values: Sequence[float], bound: float) -> float:
    """p of the mean being above the bound."""
    if min(values) == max(values):
        return 0.0 if values[0] > bound else 1.0
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    return float(stats.t.sf((float(np.mean(values)) - bound) / error, len(values) - 1))


def _p_below(values: Sequence[float], bound: float) -> float:
    return _p_above([-value for value in values], -bound)


def _sides(claim: Claim, sample: Sample | None) -> tuple[float, float] | None:
    """``p_values`` of a sample that is whole; None of one that allows no verdict."""
    if sample is None or sample.unfinished or sample.lost or len(sample.values) < SMALLEST_SAMPLE:
        return None
    return p_values(list(sample.values.values()), claim.region, claim.margin)


def _judge(sample: Sample | None, sides: tuple[float, float] | None, p: float) -> tuple[str, str]:
    """The verdict, and the remark on it. ``p`` is the adjusted one."""
    if sample is None:
        return NOT_RUN, "it is not part of what was run"
    unit = sample.unit_of_sample
    notes = list(sample.notes)
    if sample.lost:
        notes = [f"{len(sample.lost)} of {sample.planned} {unit} failed: {'; '.join(sample.lost)}", *notes]
    if sample.unfinished:
        return NOT_RUN, ". ".join([f"{sample.unfinished} of {sample.planned} {unit} are missing or unfinished", *notes])
    if sides is None and not sample.lost:
        notes = [f"too few {unit}: {len(sample.values)}, and {SMALLEST_SAMPLE} are needed", *notes]
    verdict = INCONCLUSIVE
    if sides is not None and p < ALPHA:
        inside, outside = sides
        verdict = SUPPORTED if inside < outside else NOT_SUPPORTED
        if inside < ALPHA and outside < ALPHA:
            notes = ["it lies in the range, but by less than the smallest amount that matters", *notes]
    return verdict, ". ".join(notes)


def _show_p(p: float) -> str:
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"
