"""Published claims and our own questions as ranges of a measured quantity, and what was measured for them.

An experiment lists its ``CLAIMS``; verdicts.py judges them. samples.py has the samples that most claims need.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal, get_args

from experiments.analysis.runs import Runs
from experiments.analysis.statistics import Spread
from experiments.records.schema import Comparison

BITS_PER_BYTE = 1e-6
"""what a loss in bits per byte resolves: rounding errors are below, and no claim is about so little"""
SEEN = "none found; our own question, put when this run had been seen"
"""what was published on a question that somebody asked after a look at the results; a family of its own"""
LARGEST = 1e100
"""what a measured quantity cannot exceed; squares of more would overflow"""

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
    """the spread of such a value, estimated from more than this sample; the sample is judged by it, too"""
    unjudged: str = ""
    """why the values, though all may be there, allow no verdict; empty if they do"""

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


ReadSample = Callable[[Path, Comparison, Runs], Sample | None]
"""(directory, comparison, runs) -> the sample; None if the comparison holds nothing of it. ValueError names a damaged
file."""


@dataclass(frozen=True)
class Claim:
    """A published claim or a question of our own, and the quantity that decides it.

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
    outcome of two paired variants (1: the first failed and the other did not), which only a sign test can judge.
    "exact":
    they follow from a definition, as a number of bytes, and are certain: no test, all have to agree"""
    resolution: float = 0.0
    """the smallest difference that one measured value can resolve, in the quantity's unit: 1 / number of answers for an
    accuracy, ``BITS_PER_BYTE`` for a loss. The standard deviation of a sample is taken to be no less. 0: not known"""
    resolution_of: Callable[[Mapping[str, Any]], float] | None = None
    """the same from a comparison's configuration, where it depends on that; then ``resolution`` is 0"""
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
        if not self.limits[0] < self.limits[1]:
            raise ValueError(f"{self.key}: limits is {self.limits}; give (least, most) with least < most")
        self.show(0.0)

    def of(self, comparison: Comparison) -> "Claim":
        """The claim with the resolution that it has in a comparison."""
        if self.resolution_of is None:
            return self
        return replace(self, resolution=self.resolution_of(comparison.config), resolution_of=None)

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
