"""Published claims and our own questions as ranges of a measured quantity; verdicts.py judges them.

The claims of a study are in its claims.toml: groups of claims, a line each, with what the claims of a group share.
"""

import inspect
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, Literal

import msgspec

from experiments.judge import samples
from experiments.judge.samples import ReadSample
from experiments.records.schema import Comparison
from experiments.study import Study, fill, read_toml, resolve

BITS_PER_BYTE = 1e-6
"""what a loss in bits per byte resolves: rounding errors are below, and no claim is about so little"""
SEEN = "none found; our own question, asked after the first results were seen"
"""what was published on a question that somebody asked after a look at the results; a family of its own"""

Kind = Literal["measured", "count", "exact"]
SIGNS = ((0, inf), (-inf, 0))


@dataclass(frozen=True)
class Claim:
    """A published claim or a question of our own, and what decides it. ValueError: a field is not as described."""

    key: str
    """short, unique within its study"""
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
    "exact": they follow from a definition, as a number of bytes, and are certain: no test, all have to agree"""
    resolution: float = 0.0
    """the smallest difference that one measured value can resolve, in the quantity's unit: 1 / number of answers for an
    accuracy, ``BITS_PER_BYTE`` for a loss. The standard deviation of a sample is taken to be no less. 0: not known"""
    resolution_of: Callable[[Comparison], float] | None = None
    """the same of a comparison, where it depends on that; then ``resolution`` is 0"""
    limits: tuple[float, float] = (-inf, inf)
    """what the quantity cannot exceed, as 0 and 1 of an accuracy: intervals are cut there"""
    data: str = ""
    """what was measured on, where that is not the comparison's data, as random inputs"""
    size: str = ""
    """how large what was measured is, where that is not the comparison's models and runs"""

    def __post_init__(self) -> None:
        low, high = self.region
        for name, fits, wanted in (
            ("region", low < high and (low, high) != (-inf, inf), "(low, high) with low < high, one of them finite"),
            ("region", self.kind != "count" or self.region in SIGNS, "(0, inf) or (-inf, 0) for a count"),
            ("margin", 0 < self.margin < min((high - low) / 2, inf), "more than 0 and less than half of the region"),
            ("resolution", 0 <= self.resolution < inf, "0 or more"),
        ):
            if not fits:
                raise ValueError(f"{self.key}: {name} is {getattr(self, name)!r}; give {wanted}")
        self.show(0.0)

    def of(self, comparison: Comparison) -> "Claim":
        """The claim with the resolution that it has in a comparison."""
        if self.resolution_of is None:
            return self
        return replace(self, resolution=self.resolution_of(comparison), resolution_of=None)

    def show(self, value: float) -> str:
        return format(value, self.pattern)

    @property
    def is_published(self) -> bool:
        """Whether somebody has said it: ``published`` does not begin with "none found"."""
        return not self.published.startswith("none found")

    @property
    def criterion(self) -> str:
        """Where the claim holds, in words."""
        low, high = ("0" if bound == 0 else self.show(bound) for bound in self.region)
        where = f"above {low}" if self.region[1] == inf else f"between {low} and {high}"
        where = f"below {high}" if self.region[0] == -inf else where
        if self.kind == "count":
            return f"the claim holds {where}; sign test"
        return f"the claim holds {where}; {self.show(self.margin).lstrip('+')} is the smallest amount that matters"


@cache
def claims_of(study: Study) -> tuple[Claim, ...]:
    """The claims of a study."""
    if isinstance(study.claims, Path):
        return load_claims(study.claims, study.samples)
    listed = resolve(study.claims) if isinstance(study.claims, str) else study.claims
    return tuple(listed() if callable(listed) else listed)


def load_claims(path: Path, quantities: str = "") -> tuple[Claim, ...]:
    """The claims of a TOML file.

    A claim is a line of ``claims`` in a ``[[group]]``, with what the group, the ``[like.NAME]`` that it names, and
    ``[all]`` say besides: the fields of a ``Claim``, the arguments of its sample, and any words. ``over`` has lists of
    values: there is each line for each combination of them. ``{name}`` in a text is replaced by what the claim,
    ``[text]`` or the module ``quantities`` has of that name; a text that is nothing else becomes just that. ``sample``
    and ``resolution_of`` name functions of that module or of samples.py.

    Raises:
        ValueError: names the file and the claim that is not as described.
    """
    content = read_toml(path)
    module = vars(import_module(quantities)) if quantities else {}
    constants = {"SEEN": SEEN, "BITS_PER_BYTE": BITS_PER_BYTE} | content.get("text", {})
    found = []
    for group in content["group"]:
        like = content["like"][group["like"]] if "like" in group else {}
        shared = content.get("all", {}) | like | group
        over = shared.pop("over", {})
        for values, line in product(product(*over.values()), shared.pop("claims", [{}])):
            words = shared | dict(zip(over, values, strict=True)) | line
            try:
                found.append(_claim(words, ChainMap(words, constants, module, vars(samples))))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}: {words.get('key')}: {type(error).__name__}: {error}") from error
    return tuple(found)


def _claim(words: dict[str, Any], names: Mapping[str, Any]) -> Claim:
    filled: dict[str, Any] = {name: _filled(value, names) for name, value in words.items()}
    make = names[filled["sample"]]
    parameters = inspect.signature(make).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    filled["sample"] = make(**{name: value for name, value in filled.items() if takes_all or name in parameters})
    if "resolution_of" in filled:
        filled["resolution_of"] = names[filled["resolution_of"]]
    return msgspec.convert(filled, Claim, strict=False)  # a number may have stood in braces


def _filled(value: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return tuple(_filled(each, names) for each in value)
    if isinstance(value, dict):
        return {name: _filled(each, names) for name, each in value.items()}
    if not isinstance(value, str):
        return value
    named = names.get(value[1:-1]) if value[:1] == "{" else None
    return fill(value, names) if named is None or isinstance(named, str) else named
