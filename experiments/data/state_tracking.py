"""State tracking: the product of all group elements so far (Merrill et al. 2024, arXiv 2404.08819).

A model has to carry a state that every element changes; parity is the group of two elements. Selective RoPE (arXiv
2511.17388) trains on 128 elements and tests on 512.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

import numpy as np
import numpy.typing as npt

from experiments.data.corpus import Bytes, DataSet, Sequences
from experiments.data.synthetic import sequences_data_set

LENGTHS = 16, 64, 128
GROUPS = {"parity": (2, False), "s3": (3, False), "a5": (5, True), "s5": (5, False)}
"""what is permuted, and whether only even permutations count"""


@dataclass(frozen=True)
class StateTracking(Sequences):
    """Elements of a group, drawn uniformly; the target at each is the product of all up to it.

    Elements are numbered in the order of their permutations, the identity is 0.
    """

    group: str
    length: int = 64

    def longer(self, factor: int) -> "StateTracking":
        return replace(self, length=factor * self.length)

    @cached_property
    def products(self) -> npt.NDArray[np.int64]:
        """[a, b]: first b, then a."""
        objects, only_even = GROUPS[self.group]
        elements = [p for p in permutations(range(objects)) if not (only_even and _is_odd(p))]
        number = {element: place for place, element in enumerate(elements)}
        return np.array([[number[tuple(a[i] for i in b)] for b in elements] for a in elements])

    def draw(self, generator: np.random.Generator, count: int) -> Bytes:
        return generator.integers(0, len(self.products), (count, self.length + 1), dtype=np.uint8)

    def targets(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        found = tokens[:, :-1].copy()
        for place in range(1, found.shape[1]):
            found[:, place] = self.products[found[:, place], found[:, place - 1]]
        return found


def _is_odd(permutation: tuple[int, ...]) -> bool:
    size = len(permutation)
    return sum(permutation[i] > permutation[j] for i in range(size) for j in range(i + 1, size)) % 2 == 1


def _data_set(group: str, length: int) -> DataSet:
    sequences = StateTracking(group, length)
    size = f"{length} elements of a group of {len(sequences.products)}"
    called = "Parity" if group == "parity" else f"The word problem of {group.upper()}"
    return sequences_data_set(
        f"{group}-{length}",
        f"{called}: {size}, the product so far at each.",
        sequences,
        f"State tracking as in Merrill et al. (2024): {called.lower() if group == 'parity' else called}, {size}.",
    )


DATA_SETS = tuple(_data_set(group, length) for length in LENGTHS for group in GROUPS)
