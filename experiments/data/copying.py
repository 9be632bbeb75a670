"""Copying: symbols, a separator, the same symbols again (Katharopoulos et al. 2020, arXiv 2006.16236)."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from experiments.data.corpus import NOT_SCORED, Bytes, Sequences
from experiments.data.synthetic import sequences_data_set

SYMBOLS = 10
SEPARATOR, FILLER = SYMBOLS, SYMBOLS + 1
LONGEST = (32, 128)


@dataclass(frozen=True)
class Copying(Sequences):
    """Sequences w | w of ten symbols, where w has half of ``longest`` to ``longest`` of them, drawn uniformly.

    What is left of 2·longest + 1 tokens is filled up at the end. Scored are the symbols behind the separator. The paper
    says that its sequences have ten symbols, a separator and at most 128 tokens; here 128 is the length of w, and w is
    never shorter than half of it, so that no sequence that a model is evaluated on is seen in training.
    """

    longest: int

    @property
    def length(self) -> int:
        return 2 * self.longest

    def longer(self, factor: int) -> "Copying":
        return replace(self, longest=factor * self.longest)

    def draw(self, generator: np.random.Generator, count: int) -> Bytes:
        symbols = generator.integers(0, SYMBOLS, (count, self.longest), dtype=np.uint8)
        lengths = generator.integers(self.longest // 2, self.longest, (count, 1), endpoint=True)
        places = np.arange(self.length + 1)
        tokens = np.where(places < lengths, np.pad(symbols, ((0, 0), (0, self.longest + 1))), FILLER)
        repeated = np.take_along_axis(symbols, np.clip(places - lengths - 1, 0, self.longest - 1), axis=1)
        tokens = np.where((lengths < places) & (places <= 2 * lengths), repeated, tokens)
        return np.where(places == lengths, SEPARATOR, tokens).astype(np.uint8)

    def targets(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The symbols behind the separator."""
        behind = np.cumsum(tokens[:, :-1] == SEPARATOR, axis=1) > 0
        return np.where(behind & (tokens[:, 1:] != FILLER), tokens[:, 1:], NOT_SCORED)


DATA_SETS = tuple(
    sequences_data_set(
        f"copying-{longest}",
        f"Ten symbols, a separator, the same again: {longest // 2} to {longest} symbols to be copied.",
        Copying(longest),
        f"Copying as in Katharopoulos et al. (2020), {longest // 2} to {longest} of ten symbols.",
    )
    for longest in LONGEST
)
