"""Induction: what stood behind the mark the first time? (Fu et al. 2022, arXiv 2212.14052; Olsson et al. 2022)"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from experiments.data.corpus import NOT_SCORED, Bytes, Sequences
from experiments.data.synthetic import sequences_data_set

SYMBOLS = 16
MARK = SYMBOLS
LENGTHS = (64, 256)


@dataclass(frozen=True)
class Induction(Sequences):
    """Sixteen symbols drawn uniformly, with a mark at a place drawn uniformly and again as the last input.

    The target there is the symbol behind the first mark; nothing else is scored. So guessing is right for a sixteenth.
    Mamba (arXiv 2312.00752) trains on 256 such tokens and tests on up to a million.
    """

    length: int = LENGTHS[0]

    def longer(self, factor: int) -> "Induction":
        return replace(self, length=factor * self.length)

    def draw(self, generator: np.random.Generator, count: int) -> Bytes:
        tokens = generator.integers(0, SYMBOLS, (count, self.length + 1), dtype=np.uint8)
        rows, marks = np.arange(count), generator.integers(0, self.length - 2, count)
        tokens[rows, marks] = tokens[:, -2] = MARK
        tokens[:, -1] = tokens[rows, marks + 1]
        return tokens

    def targets(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The last token."""
        targets = np.full((len(tokens), self.length), NOT_SCORED)
        targets[:, -1] = tokens[:, -1]
        return targets


DATA_SETS = tuple(
    sequences_data_set(
        f"induction-{length}",
        f"Induction: {length} tokens, a mark somewhere and at the end; what stood behind it the first time?",
        Induction(length),
        f"Induction heads as in Fu et al. (2022): {length} tokens of sixteen symbols and a mark.",
    )
    for length in LENGTHS
)
