"""The samples that most claims need: a quantity of one or more variants for each seed.

Every function here returns what ``Claim.sample`` is. That gives None if the comparison lacks a variant, and counts the
seeds at which a variant failed or is unfinished.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Literal, NamedTuple

from experiments.judge.curves import NotRecorded, RunRecord
from experiments.judge.runs import Runs
from experiments.judge.statistics import Spread, first_at_or_below, pooled_spread
from experiments.records.csv_files import NotMeasured
from experiments.records.schema import Comparison

LARGEST = 1e100
"""what a measured quantity cannot exceed; squares of more would overflow"""


@dataclass(frozen=True)
class Sample:
    """What was measured for one claim. ValueError: a value is not finite or beyond 1e100."""

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
    """the spread of such a value, estimated from more than this sample; the sample is judged by it, too"""
    about: tuple[str, ...] = ()
    """the variants that are compared"""
    unlearnt: Mapping[str, str] = field(default_factory=dict)
    """a sentence on each of these that is not clearly better than the lowest floor"""
    unjudged: str = ""
    """why the values, though all may be there, allow no verdict; empty if they do"""

    def __post_init__(self) -> None:
        for key, value in self.values.items():
            if not abs(value) <= LARGEST:
                raise ValueError(f"values[{key}] is {value}; give a finite number up to {LARGEST:g}")

    @property
    def unfinished(self) -> int:
        """How many planned values are neither there nor lost."""
        return self.planned - len(self.values) - len(self.lost)


ReadSample = Callable[[Path, Comparison, Runs], Sample | None]
"""(directory, comparison, runs) -> the sample; None if the comparison holds nothing of it. ValueError names a damaged
file."""


class Undefined(Exception):
    """The quantity has no value at this seed; the message says why."""


class Noted(NamedTuple):
    """A value, and a note for its reader."""

    value: float
    note: str


def per_seed(variants: tuple[str, ...], quantity: Callable[..., float | Noted]) -> ReadSample:
    """``quantity(*runs)``, which may raise NotRecorded or Undefined, for each seed at which these variants finished."""
    return by_seed(
        variants, lambda root, comparison, runs: lambda seed: quantity(*(runs.numbers[each, seed] for each in variants))
    )


def by_seed(
    variants: tuple[str, ...], read: Callable[[Path, Comparison, Runs], Callable[[int], float | Noted | None]]
) -> ReadSample:
    """The same of any records: ``read`` gives the quantity as a function of a seed, None where it is not measured."""

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        if not set(variants) <= {variant.name for variant in comparison.variants}:
            return None
        try:
            quantity = read(root, comparison, runs)
        except NotMeasured:
            quantity = dict[int, float]().get
        found: dict[int, float | Noted | None] = {}
        lost = []
        for seed in comparison.seeds:
            fates = {variant: runs.fates[variant, seed] for variant in variants}
            failed = {variant: reason for variant, (state, reason) in fates.items() if state == "failed"}
            if failed:
                told = (f"{variant} failed: {reason or 'no reason recorded'}" for variant, reason in failed.items())
                lost.append(f"seed {seed}: {', '.join(told)}")
            elif all(state == "done" for state, _ in fates.values()):
                try:
                    found[seed] = quantity(seed)
                except NotRecorded:
                    continue
                except Undefined as error:
                    lost.append(f"seed {seed}: {error}")
        notes = Counter(value.note for value in found.values() if isinstance(value, Noted))
        values = {seed: each.value if isinstance(each, Noted) else each for seed, each in found.items()}
        there = {seed: value for seed, value in values.items() if value is not None}
        return Sample(
            there,
            len(comparison.seeds),
            tuple(lost),
            notes=tuple(f"{count} of {len(there)} seeds {note}" for note, count in notes.items()),
            about=variants,
            unlearnt={each: runs.unlearnt[each] for each in variants if each in runs.unlearnt},
        )

    return sample


def paired(variant: str, other: str, metric: str = "test_bits_per_byte") -> ReadSample:
    """The last value of a metric, variant minus other, by seed."""
    return per_seed((variant, other), lambda mine, theirs: mine.last(metric) - theirs.last(metric))


def paired_primary(variant: str, other: str) -> ReadSample:
    """The comparison's own metric on the test split, variant minus other, by seed."""

    def read(root: Path, comparison: Comparison, runs: Runs) -> Callable[[int], float]:
        metric = f"test_{comparison.objective.metric}"
        return lambda seed: runs.numbers[variant, seed].last(metric) - runs.numbers[other, seed].last(metric)

    return by_seed((variant, other), read)


def paired_average(variant: str, other: str, metric: str = "validation_bits_per_byte") -> ReadSample:
    """The average of a metric over the steps of training (the area under its curve), variant minus other, by seed."""
    return per_seed((variant, other), lambda mine, theirs: mine.average(metric) - theirs.average(metric))


def paired_answers(variant: str, other: str, metric: str, learnt: float, by: Literal["either", "other"]) -> ReadSample:
    """The last accuracy, variant minus other, by seed; not defined where the task is not learnt, and nothing compares.

    Learnt is an accuracy of ``learnt`` or more: of at least one of the two, or of the other variant.
    """

    def difference(mine: RunRecord, theirs: RunRecord) -> float:
        accuracy, reference = mine.last(metric), theirs.last(metric)
        if by == "other" and reference < learnt:
            raise Undefined(f"{other} has not learnt the task ({reference:.0%}, less than {learnt:.0%})")
        if by == "either" and max(accuracy, reference) < learnt:
            raise Undefined(f"neither has begun to learn the task ({accuracy:.0%} and {reference:.0%})")
        return accuracy - reference

    return per_seed((variant, other), difference)


def with_all_variants(read: ReadSample, metric: str, factor: float) -> ReadSample:
    """The sample with ``factor`` times the spread of a metric's last value within variants, all of them together.

    Without values until every run of the comparison has finished, and not judged where one failed: a spread that lacks
    some could be smaller.
    """

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        found = read(root, comparison, runs)
        if found is None:
            return None
        done, failed = [], []
        for (variant, seed), (state, _) in runs.fates.items():
            if state == "failed":
                failed.append(f"{variant} failed at seed {seed}")
            elif state == "done" and runs.numbers[variant, seed].has(metric):
                done.append((variant, runs.numbers[variant, seed].last(metric)))
            else:
                return Sample({}, found.planned, notes=("it is judged when all variants have finished", *found.lost))
        if failed:
            return replace(found, unjudged=f"the spread of all variants is not known, as {' and '.join(failed)}")
        groups = ([value for name, value in done if name == variant.name] for variant in comparison.variants)
        std, degrees = pooled_spread(groups)
        if not degrees:
            return found
        note = f"judged by the spread of all variants, too: {factor * std:.3f}, {degrees} degrees of freedom"
        return replace(found, pooled=Spread(factor * std, degrees), notes=(*found.notes, note))

    return sample


def steps_saved(variant: str, other: str, metric: str = "validation_bits_per_byte") -> ReadSample:
    """The share of its steps that the other variant's final value costs the variant less: 1 - (first step at or below)
    / steps.

    0 where the variant never comes down to it, and it is said.
    """

    def share(mine: RunRecord, theirs: RunRecord) -> float | Noted:
        baseline = theirs.curve(metric)
        steps = int(baseline.index[-1])
        if steps == 0:
            raise NotRecorded(metric)
        step = first_at_or_below(mine.curve(metric), float(baseline.iloc[-1]))
        if isnan(step):
            return Noted(0.0, f"never reached {other}'s final loss and count as 0")
        return 1 - step / steps

    return per_seed((variant, other), share)


def gap_closed(variant: str, baseline: str, goal: str, metric: str = "test_bits_per_byte") -> ReadSample:
    """(baseline - variant) / (baseline - goal) by seed; not defined where the goal's value is not below the
    baseline's.
    """

    def share(mine: RunRecord, base: RunRecord, best: RunRecord) -> float:
        gap = base.last(metric) - best.last(metric)
        if gap <= 0:
            raise Undefined(f"{goal} is not better than {baseline}, so there is no gap to close")
        return (base.last(metric) - mine.last(metric)) / gap

    return per_seed((variant, baseline, goal), share)


def evaluations_apart(comparison: Comparison) -> float:
    """What a share of the steps resolves: evaluations lie this part of the run apart."""
    return min(1.0, comparison.config["evaluate_every"] / comparison.config["steps"])


def one_text(comparison: Comparison) -> float:
    """What an accuracy on the test split resolves: the share of one text; F1 and correlations are about as coarse."""
    return 1 / comparison.evaluated_windows["test"]
