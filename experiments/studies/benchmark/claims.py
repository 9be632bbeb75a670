"""What was claimed before the benchmark's runs, judged by the rule that was frozen with it (its file claims.toml)."""

from collections.abc import Sequence
from functools import cache
from math import isnan, nan
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pandas as pd

from experiments.judge.claims import BITS_PER_BYTE
from experiments.judge.difference import paired_test
from experiments.judge.samples import one_text
from experiments.judge.significance import holm
from experiments.judge.statistics import Estimate
from experiments.judge.verdicts import ALPHA, NOT_RUN, NOT_SUPPORTED, SUPPORTED
from experiments.records.record import read_comparison, run_status
from experiments.records.schema import Comparison
from experiments.studies.benchmark.definition import FOLDER, NAME
from experiments.studies.benchmark.results import reached
from experiments.study import read_toml
from experiments.train.steps import DIVERGED

UNDECIDED = "undecided"
REGIONS = {"lower": "is below 0", "higher": "is above 0", "equal": "is 0"}


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of the file, whose head says what its fields are."""

    key: str
    family: str
    task: str
    first: str
    second: str
    expect: Literal["lower", "higher", "equal"]
    budget: float = 0
    factor: int = 1
    pairs: int = 0
    minus: str = ""

    def __str__(self) -> str:
        less = f", less the same of {self.minus}" * bool(self.minus)
        return f"{self.first} − {self.second}{less} {REGIONS[self.expect]}"

    @property
    def where(self) -> str:
        """The task, and what of it."""
        longer = f"{self.factor} times the length of training" * (self.factor > 1)
        budget, pairs = f"{self.budget:g} million bytes" * bool(self.budget), f"{self.pairs} pairs" * bool(self.pairs)
        return ", ".join(filter(None, [self.task, budget, longer, pairs]))


class Judged(NamedTuple):
    """A claim with the mean of its paired differences."""

    claim: Claim
    found: Estimate
    p: float
    """NaN: there was no test"""
    margin: float
    in_family: float = 1.0
    """p by Holm's method over the family; a claim without a test counts as 1 there"""
    of_all: float = 1.0
    """the same over all claims; the frozen rule does not ask for it"""

    @property
    def verdict(self) -> str:
        """That of the frozen rule."""
        found, margin, expect = self.found, self.margin, self.claim.expect
        if not found.has_interval:
            return UNDECIDED if found.n else NOT_RUN
        below, above = found.high < 0, found.low > 0
        within, beyond = -margin < found.low and found.high < margin, found.low > margin or found.high < -margin
        sides = {"lower": (below, above or within), "higher": (above, below or within), "equal": (within, beyond)}
        holds, fails = sides[expect]
        if holds:
            return SUPPORTED if self.in_family < ALPHA else UNDECIDED
        return NOT_SUPPORTED if fails else UNDECIDED


@cache
def frozen_claims() -> tuple[Claim, ...]:
    """All claims, in their order."""
    return msgspec.convert(read_toml(FOLDER / NAME / "claims.toml")["claims"], tuple[Claim, ...])


def judged(roots: Sequence[Path]) -> list[Judged]:
    """Every claim, on those of the tasks that are there."""
    tasks = {comparison.name: (root, comparison) for root in roots for comparison in [read_comparison(root)]}
    rows = [_tested(claim, tasks) for claim in frozen_claims()]

    def adjusted(some: list[Judged]) -> dict[Claim, float]:
        found = holm([1 if isnan(each.p) else each.p for each in some])
        return {each.claim: p for each, p in zip(some, found, strict=True)}

    of_all, in_family = adjusted(rows), dict[Claim, float]()
    for family in {each.claim.family for each in rows}:
        in_family |= adjusted([each for each in rows if each.claim.family == family])
    return [each._replace(in_family=in_family[each.claim], of_all=of_all[each.claim]) for each in rows]


def table(roots: Sequence[Path]) -> pd.DataFrame | None:
    """A row of strings for each claim of which something was run."""
    rows = [
        {
            "claim": str(each.claim),
            "task": each.claim.where,
            "seeds": str(each.found.n),
            "difference": each.found.show("+.3f"),
            "p": "" if isnan(each.p) else f"{each.in_family:.2g}",
            "p of all": "" if isnan(each.p) else f"{each.of_all:.2g}",
            "verdict": each.verdict,
        }
        for each in judged(roots)
        if each.found.n
    ]
    made = pd.DataFrame(rows)
    made.attrs["others"] = len(frozen_claims()) - len(rows)
    return made if rows else None


def _tested(claim: Claim, tasks: dict[str, tuple[Path, Comparison]]) -> Judged:
    needed = [name for name in (claim.task, claim.minus) if name]
    if not {*needed} <= {*tasks}:
        return Judged(claim, Estimate(0), nan, nan)
    metric = tasks[claim.task][1].objective.metric
    margin: float = read_toml(FOLDER / NAME / "claims.toml")["margins"][metric]
    resolution = one_text(tasks[claim.task][1]) if metric == "accuracy" else BITS_PER_BYTE
    first, *minus = (_differences(claim, *tasks[name], margin) for name in needed)
    found, different, equivalent = paired_test([*(first - sum(minus)).dropna()], margin, resolution)
    return Judged(claim, found, equivalent if claim.expect == "equal" else different, margin)


def _differences(claim: Claim, root: Path, comparison: Comparison, margin: float) -> "pd.Series[float]":
    """First minus second, by seed.

    Where one of them diverged it is the worse one, by as much as at any other seed, at least the margin.
    """
    both = [claim.first, claim.second]
    values = reached(root, comparison, claim.budget, claim.factor, claim.pairs).reindex(columns=both)
    found = (values[claim.first] - values[claim.second]).dropna()
    most = max([margin, *found.abs()]) * (1 if comparison.objective.better == "lower" else -1)
    for seed in comparison.seeds:
        ended = [run_status(root, name, seed) for name in both]
        gone = [each.state == "failed" and (each.reason or "").startswith(DIVERGED) for each in ended]
        if gone[0] != gone[1]:
            found[seed] = most if gone[0] else -most
    return found
