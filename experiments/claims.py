"""Published claims as intervals of a measured quantity, and the rule that turns samples into verdicts.

An experiment lists its ``CLAIMS``. ``evaluate`` reads the sample of each from a comparison's files and judges it by
``RULE``; nothing else makes a verdict. samples.py has the samples that most claims need.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from scipy import stats

from experiments.cells import Cells
from experiments.stats import SMALLEST_SAMPLE, Estimate, Spread, estimate, spreads_of

ALPHA = 0.05
BITS_PER_BYTE = 1e-6
"""what a loss in bits per byte resolves: rounding errors are below, and no claim is about so little"""
FEWEST_DIFFERING = 6
"""outcomes that the two-sided sign test needs to be below ``ALPHA``: 2 / 2^6 is 0.03"""
LARGEST = 1e100
"""what a measured quantity cannot exceed; squares of more would overflow"""

SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE, NOT_RUN = "supported", "not supported", "inconclusive", "not run"
VERDICTS = (SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE, NOT_RUN)

RULE = (
    "A claim says in which range the mean of a measured quantity lies. A one-sided Student t test asks whether it lies "
    "there (with two ends: at both, the larger p counts), another whether it lies outside, or inside by less than the "
    "smallest amount that matters. Where it is known what difference a single value can resolve, the standard "
    "deviation is taken to be no less.",
    "Accuracies of a task that a run learns or does not, nearly all or nothing, say little of their spread where three "
    "seeds happen to be alike. They are judged by the spread within arms, too, of all arms of the comparison together "
    "(as in an analysis of variance, with its degrees of freedom; of a difference of two arms √2 times as much): the "
    "larger p counts, and the wider interval is shown.",
    "An outcome that is -1, 0 or 1 (of two paired arms, which one failed) is judged by the exact two-sided sign test "
    "instead, on those that are not 0. It needs six of them.",
    "What follows from a definition, as a formula or a number of bytes, is judged without a test: all values have to "
    "lie in the range, or all outside.",
    "Each p is doubled, because either test could have come out, and adjusted by Holm's method for all claims that "
    "were declared for the same comparison and family, whether or not they were measured (the smaller p of every claim "
    "together, the larger ones together); one without a verdict counts with p = 1. The p that is shown is the adjusted "
    "one of the test that gave the verdict.",
    "The claim is supported or not supported, as the test says, where that p is below 0.05. Where both are, the mean "
    "lies in the range, but by less than matters: the claim is not supported, and that is remarked.",
    "It is inconclusive otherwise; with fewer than three values; where one that was planned failed or is not defined; "
    "and where all values are equal of something that is measured without a known resolution, as their spread is not "
    "known then.",
    "It is not run where anything planned is missing or unfinished.",
    "In brackets: the 95 % interval of the mean (Student's t). It is not adjusted for the number of claims, so it may "
    "lie clear of a bound where the verdict is inconclusive.",
)
"""how verdicts are made, a point each"""

Kind = Literal["measured", "count", "exact"]


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
    """a sentence for each planned value that failed or is not defined; neither value nor sentence: not measured yet"""
    unit_of_sample: str = "seeds"
    """what the values are of, in the plural: seeds, draws, rounds"""
    notes: tuple[str, ...] = ()
    """what a reader has to know of the values, a sentence each"""
    pooled: Spread | None = None
    """the spread of such a value by more than this sample, which has to be judged by it as well"""

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


ReadSample = Callable[[Path, dict[str, Any], Cells], Sample | None]
"""(directory, comparison, cells) -> the sample; None if the comparison holds nothing of it. ValueError names a damaged
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
    """what was published and where (paper, section or figure, arXiv id); begins with "none found" where nothing was"""
    quantity: str
    """what is measured, in words, with its unit"""
    region: tuple[float, float]
    """the claim holds where the quantity lies between these; one of them may be infinite"""
    margin: float
    """the smallest amount that matters, above 0, in the quantity's unit; less than half of the region's width. A sign
    test has no use for it"""
    sample: ReadSample
    pattern: str = "+.3f"
    """format of the quantity"""
    family: str = ""
    """Holm's correction is within a comparison and family"""
    kind: Kind = "measured"
    """what the values are. "measured": they scatter, and equal ones do not say how much. "count": -1, 0 or 1, the
    outcome of two paired arms (1: the first failed and the other did not), which only a sign test can judge. "exact":
    they follow from a definition, as a number of bytes, and are certain: no test, all have to agree"""
    resolution: float = 0.0
    """the smallest difference that one measured value can resolve, in the quantity's unit: 1 / number of answers for an
    accuracy, ``BITS_PER_BYTE`` for a loss. The standard deviation of a sample is taken to be no less. 0: not known"""
    limits: tuple[float, float] = (-inf, inf)
    """what the quantity cannot exceed, as 0 and 1 of an accuracy: intervals are cut there"""
    data: str = ""
    """what was measured on, where that is not the comparison's data, as random inputs"""
    size: str = ""
    """how large what was measured is, where that is not the comparison's models and runs"""

    def __post_init__(self) -> None:
        low, high = self.region
        if not low < high or (low, high) == (-inf, inf):
            raise ValueError(
                f"{self.key}: region is {self.region}; give (low, high) with low < high, one of them finite"
            )
        if not 0 < self.margin < (high - low) / 2 or not isfinite(self.margin):
            raise ValueError(f"{self.key}: margin is {self.margin}; give more than 0 and less than half of the region")
        if self.kind not in get_args(Kind):
            raise ValueError(f"{self.key}: kind is {self.kind!r}; give one of {', '.join(get_args(Kind))}")
        if self.kind == "count" and self.region not in ((0, inf), (-inf, 0)):
            raise ValueError(f"{self.key}: region is {self.region}; a count has (0, inf) or (-inf, 0)")
        if not 0 <= self.resolution <= LARGEST or (self.resolution and self.kind != "measured"):
            raise ValueError(
                f"{self.key}: resolution is {self.resolution}; give 0 or more, and 0 unless the kind is measured"
            )
        self.show(0.0)

    def show(self, value: float) -> str:
        """The value as text."""
        return format(value, self.pattern)

    @property
    def is_published(self) -> bool:
        """Whether somebody has said it: ``published`` does not begin with "none found"."""
        return not self.published.startswith("none found")

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
        if self.kind == "count":
            return f"the claim holds {where}; sign test"
        return f"the claim holds {where}; {self.show(self.margin).lstrip('+')} is the smallest amount that matters"


@dataclass(frozen=True)
class Row:
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
    command: str
    """what measures it"""

    @property
    def source(self) -> str:
        """Where it was measured: the comparison, its data and its size."""
        return "; ".join(part for part in (self.reference, self.data, self.size) if part)

    @property
    def measured(self) -> str:
        """Mean, interval (of an exact quantity, the range), number of values and adjusted p; a dash for nothing."""
        found = self.estimate
        if found.n == 0:
            return "-"
        show = self.claim.show
        mean, low, high = (show(value) for value in (found.mean, found.low, found.high))
        if self.claim.kind == "exact":
            number = mean if low == high else f"{mean} on average ({low} to {high})"
            return f"{number}, n = {found.n} {self.unit}, exact"
        number = f"{mean} [{low}, {high}]" if found.has_interval else mean
        return f"{number}, n = {found.n} {self.unit}" + ("" if np.isnan(self.p) else f", {_show_p(self.p)}")


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
        cells = Cells(root, comparison, curves)
        samples = [claim.sample(root, comparison, cells) for claim in claims]
    sides = [_sides(claim, sample) for claim, sample in zip(claims, samples, strict=True)]
    adjusted: dict[int, tuple[float, float]] = {}
    for family in {claim.family for claim in claims}:
        members = [index for index, claim in enumerate(claims) if claim.family == family]
        adjusted |= zip(members, adjust([sides[index] for index in members]), strict=True)
    data = ", ".join(each["name"] for each in comparison["data"]) if comparison else ""
    rows = []
    for index, (claim, sample) in enumerate(zip(claims, samples, strict=True)):
        verdict, p, remark = _judge(claim, sample, None if sides[index] is None else adjusted[index])
        rows.append(
            Row(
                claim=claim,
                reference=reference,
                data=claim.data or data,
                size=claim.size or (size(comparison) if comparison else ""),
                estimate=estimate_of(claim, sample),
                unit=sample.unit_of_sample if sample else "seeds",
                p=p,
                verdict=verdict,
                remark=remark,
                command=command,
            )
        )
    return rows


def p_values(
    values: Sequence[float],
    region: tuple[float, float],
    margin: float,
    resolution: float = 0.0,
    pooled: Spread | None = None,
) -> tuple[float, float]:
    """One-sided p of "the mean is in the region", and of "it is not, or by less than the margin".

    Of two or more values, not all equal unless a resolution above 0 is given, which the standard deviation is taken to
    be no less than. With a pooled spread the larger p counts, of that by the values' own and of that by the pooled one.
    The alternative of the second test is a union where the region has two ends: its p is the smaller of two, doubled.
    """
    low, high = region
    mean = float(np.mean(values))
    spreads = spreads_of(values, resolution, pooled)

    def above(bound: float, sign: int = 1) -> float:
        distance = sign * (mean - bound) * len(values) ** 0.5
        return max(float(stats.t.sf(distance / std, degrees)) for std, degrees in spreads)

    def below(bound: float) -> float:
        return above(bound, -1)

    inside = [above(low)] * isfinite(low) + [below(high)] * isfinite(high)
    outside = [below(low + margin)] * isfinite(low) + [above(high - margin)] * isfinite(high)
    return max(inside), min(1.0, len(outside) * min(outside))


def sign_test(outcomes: Sequence[float], region: tuple[float, float]) -> tuple[float, float]:
    """One-sided p of "1 is more frequent than -1" and of the opposite; reversed for a region below 0.

    Exact: of the outcomes that are not 0, each sign is as likely as the other if there is no difference.
    """
    differing = [outcome for outcome in outcomes if outcome]
    inside = sum(region[0] < outcome < region[1] for outcome in differing)
    distribution = stats.binom(len(differing), 0.5)
    return float(distribution.sf(inside - 1)), float(distribution.cdf(inside))


def adjust(sides: Sequence[tuple[float, float] | None]) -> list[tuple[float, float]]:
    """The two p of each claim of a family, doubled and adjusted: the smaller ones together, the larger ones together.

    None, for a claim that allows no test, counts as 1. The larger p of a claim is not adjusted beside the smaller ones
    of others: wherever a claim or its opposite is true that one is tiny, and would take nothing of the 0.05.
    """
    pairs = [each or (1.0, 1.0) for each in sides]
    smaller, larger = (holm([2 * chosen(pair) for pair in pairs]) for chosen in (min, max))
    return [
        (small, large) if inside < outside else (large, small)
        for (inside, outside), small, large in zip(pairs, smaller, larger, strict=True)
    ]


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
        f"{layers} layer{'s' * (layers != 1)}, width {width}, {config['steps']:,} steps of {tokens:,} tokens, context "
        f"{config['context']:,}, {tuned}"
    )


def estimate_of(claim: Claim, sample: Sample | None) -> Estimate:
    """Mean and interval of a sample.

    What is exact has the smallest and the largest value for bounds; outcomes, and equal values whose resolution is not
    known, have no interval.
    """
    values = [] if sample is None else list(sample.values.values())
    found = estimate(values, smallest_std=claim.resolution, pooled=sample.pooled if sample else None)
    if claim.kind == "exact" and values:
        return Estimate(found.n, found.mean, min(values), max(values), 0.0)
    if claim.kind == "count" or (found.has_interval and min(values) == max(values) and not claim.resolution):
        return Estimate(found.n, found.mean)
    least, most = claim.limits
    return replace(found, low=max(found.low, least), high=min(found.high, most)) if found.has_interval else found


def _sides(claim: Claim, sample: Sample | None) -> tuple[float, float] | None:
    """The two p of a sample that is whole; None of one that allows no verdict."""
    if sample is None or sample.unfinished or sample.lost or _why_untested(claim, sample):
        return None
    values = list(sample.values.values())
    if claim.kind == "count":
        if not set(values) <= {-1, 0, 1}:
            raise ValueError(f"{claim.key}: values are {values}; those of a count are -1, 0 or 1")
        return sign_test(values, claim.region)
    if claim.kind == "exact":
        return _certainties(values, claim.region, claim.margin)
    return p_values(values, claim.region, claim.margin, claim.resolution, sample.pooled)


def _certainties(values: Sequence[float], region: tuple[float, float], margin: float) -> tuple[float, float]:
    """0 where all values are in the region, else 1; and 0 where all are outside, or inside by less than the margin."""
    low, high = region
    inside = all(low < value < high for value in values)
    outside = all(value < low + margin or value > high - margin for value in values)
    return float(not inside), float(not outside)


def _why_untested(claim: Claim, sample: Sample) -> str:
    """Why the values, though all are there, allow no test; empty if they do."""
    values = list(sample.values.values())
    if len(values) < SMALLEST_SAMPLE:
        return f"too few {sample.unit_of_sample}: {len(values)}, and {SMALLEST_SAMPLE} are needed"
    if claim.kind == "count" and not any(values):
        return _differed(sample)
    if claim.kind == "measured" and not claim.resolution and min(values) == max(values):
        return "all values are equal"
    return ""


def _differed(sample: Sample) -> str:
    differing = sum(map(bool, sample.values.values()))
    return f"{differing} of {sample.planned} {sample.unit_of_sample} differed, and a sign test needs {FEWEST_DIFFERING}"


def _judge(claim: Claim, sample: Sample | None, sides: tuple[float, float] | None) -> tuple[str, float, str]:
    """The verdict, the p that it follows from, and the remark. ``sides`` are adjusted; None allows no verdict."""
    if sample is None:
        return NOT_RUN, nan, "it is not part of what was run"
    unit = sample.unit_of_sample
    notes = list(sample.notes)
    if sample.lost:
        notes = [f"{len(sample.lost)} of {sample.planned} {unit} have no value: {'; '.join(sample.lost)}", *notes]
    if sample.unfinished:
        missing = f"{sample.unfinished} of {sample.planned} {unit} are missing or unfinished"
        return NOT_RUN, nan, ". ".join([missing, *notes])
    if sides is None:
        why = "" if sample.lost else _why_untested(claim, sample)
        return INCONCLUSIVE, nan, ". ".join([*([why] if why else []), *notes])
    inside, outside = sides
    if claim.kind == "count" and sum(map(bool, sample.values.values())) < FEWEST_DIFFERING:
        notes = [_differed(sample), *notes]
    if outside < ALPHA:
        within = ["it lies in the range, but by less than the smallest amount that matters"] if inside < ALPHA else []
        return NOT_SUPPORTED, outside, ". ".join([*within, *notes])
    return SUPPORTED if inside < ALPHA else INCONCLUSIVE, min(inside, outside), ". ".join(notes)


def _show_p(p: float) -> str:
    return "adjusted p < 0.0001" if p < 1e-4 else f"adjusted p = {p:.2g}"
