"""RoPE for sequences longer than those of training: other angles for the weights that there are.

All have a factor s, about how many times longer the sequences are; s = 1 changes nothing. They were made for softmax
attention, where RoPE rotates queries and keys; after a feature map they scale the angles of its M features likewise.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RopeScaling:
    """What all ways of stretching RoPE have in common: other angles, and maybe a factor on queries and keys.

    Raises:
        ValueError: a value that it cannot be.
    """

    factor: float
    """s; 1 or more"""

    def __post_init__(self) -> None:
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"factor is {self.factor}; give 1 or more, how many times longer the sequences are")

    def scale(self, frequencies: Tensor) -> Tensor:
        """The angles per position (width / 2,), from the fastest to the slowest, in place of ``frequencies``."""
        raise NotImplementedError

    @property
    def magnitude(self) -> float:
        """The factor that queries are multiplied by, and keys too."""
        return 1.0


class PositionInterpolation(RopeScaling):
    """Positions divided by s (Chen et al. 2023, arXiv 2306.15595)."""

    def scale(self, frequencies: Tensor) -> Tensor:
        return frequencies / self.factor


class NTKAware(RopeScaling):
    """The base times s^(width / (width − 2)), width being what is rotated (YaRN's section 3.1, arXiv 2309.00071).

    The fastest pair turns as before, the slowest s times slower, those between by powers of s between.
    """

    def scale(self, frequencies: Tensor) -> Tensor:
        pairs = len(frequencies)
        share = torch.arange(pairs, dtype=frequencies.dtype, device=frequencies.device) / max(1, pairs - 1)
        return frequencies * self.factor**-share


@dataclass(frozen=True)
class YaRN(RopeScaling):
    """NTK-by-parts with a temperature (Peng et al. 2023, arXiv 2309.00071, sections 3.2 and 3.4).

    Pairs that turn ``beta`` times or more within the original length are left alone, those that turn ``alpha``
    times or less are slowed by s, and between them is a ramp, linear in the pair's number as in the authors' code.
    Scores qᵀk are multiplied by (0.1·ln s + 1)²: where RoPE rotates q and k before softmax, or before a map of scores,
    as FAVOR+ and Taylor's are. Other maps, and RoPE after a map, have no score for a temperature to act on: there it is
    left out (see ``FeatureMap.score_scale``).
    """

    original_length: int
    """positions in training"""
    alpha: float = 1.0
    """rotations within ``original_length`` at which the ramp begins"""
    beta: float = 32.0
    """rotations at which it ends"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.original_length < 1:
            raise ValueError(f"original_length is {self.original_length}; give the length in training, 1 or more")
        if not 0 <= self.alpha < self.beta:
            raise ValueError(f"alpha is {self.alpha} and beta {self.beta}; give 0 or more, and a larger beta")

    def scale(self, frequencies: Tensor) -> Tensor:
        pairs = len(frequencies)
        if pairs == 1:
            return frequencies
        # The logarithm of what a pair turns falls evenly from pair to pair.
        slowing = (frequencies[0] / frequencies[1]).log()

        def number(rotations: float) -> Tensor:
            turns = self.original_length / (2 * math.pi * rotations) if rotations else math.inf
            return math.log(turns) / slowing

        first = number(self.beta).floor().clamp(min=0)
        last = number(self.alpha).clamp(max=2 * pairs - 1).ceil()
        numbers = torch.arange(pairs, dtype=frequencies.dtype, device=frequencies.device)
        slowed = ((numbers - first) / (last - first).clamp(min=1e-3)).clamp(0, 1)
        return slowed * frequencies / self.factor + (1 - slowed) * frequencies

    @property
    def magnitude(self) -> float:
        return 0.1 * math.log(self.factor) + 1


def check_scaling(scaling: RopeScaling | None, *, rotates: bool, name: str = "rope_scaling") -> None:
    """Raises ValueError for what is no scaling, or for one where nothing is rotated."""
    if scaling is not None and not isinstance(scaling, RopeScaling):
        raise ValueError(f"{name} is {scaling!r}; give PositionInterpolation, NTKAware, YaRN or None")
    if scaling is not None and not rotates:
        raise ValueError(f"rope_scaling is {scaling}, but RoPE is not used; leave it out, or choose a RoPE")
