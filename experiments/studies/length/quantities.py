"""The quantities of the length study that its claims are about: losses, of which lower is better."""

from collections.abc import Callable
from pathlib import Path

from experiments.analysis.samples import ReadSample, from_table
from experiments.records.schema import Comparison
from experiments.studies.length.measure import AS_TRAINED, read_losses, window_means

BREAKS = 0.1
"""bits per byte: what we call breaking"""

Term = tuple[float, str, str, int]
"""weight, variant, method, factor of the context"""


def rise(variant: str, factor: int) -> ReadSample:
    """The loss in windows of a factor of the training length minus that in windows of the training length."""
    return _by_seed((1, variant, AS_TRAINED, factor), (-1, variant, AS_TRAINED, 1))


def rise_difference(variant: str, other: str, factor: int) -> ReadSample:
    """``rise`` of a variant minus that of another."""
    return _by_seed(
        (1, variant, AS_TRAINED, factor),
        (-1, variant, AS_TRAINED, 1),
        (-1, other, AS_TRAINED, factor),
        (1, other, AS_TRAINED, 1),
    )


def loss_difference(variant: str, other: str, factor: int) -> ReadSample:
    """The loss of a variant at a factor of the training length minus that of another."""
    return _by_seed((1, variant, AS_TRAINED, factor), (-1, other, AS_TRAINED, factor))


def method_difference(variant: str, method: str, instead: str, factor: int) -> ReadSample:
    """The loss of a variant stretched in one way minus that in another, at a factor of the training length."""
    return _by_seed((1, variant, method, factor), (-1, variant, instead, factor))


def _by_seed(*terms: Term) -> ReadSample:
    """Σ weight · loss(variant, method, factor) for each seed."""

    def read(root: Path, comparison: Comparison) -> Callable[[int], float | None]:
        measured = read_losses(root)
        if measured is None:
            return lambda seed: None
        losses = window_means(measured).set_index(["variant", "seed", "method", "length"])["bits_per_byte"]
        context = comparison.config["context"]

        def weighted(seed: int) -> float | None:
            places = [(variant, seed, method, factor * context) for _, variant, method, factor in terms]
            if not all(place in losses.index for place in places):
                return None
            return sum(term[0] * float(losses[place]) for term, place in zip(terms, places, strict=True))

        return weighted

    return from_table(tuple(variant for _, variant, _, _ in terms), read)
