"""Position encodings: of vectors (rotary, selective, absolute), of scores (ALiBi) and of the past (decay)."""

from linear_rope.positions.absolute import LearnedPositions, SinusoidalPositions
from linear_rope.positions.decay import DECAYS, Decay, FixedDecay, GatedDecay
from linear_rope.positions.rope_scaling import NTKAware, PositionInterpolation, RopeScaling, YaRN
from linear_rope.positions.rotary import apply_rope
from linear_rope.positions.selective import SelectiveRotation

__all__ = [
    "DECAYS",
    "Decay",
    "FixedDecay",
    "GatedDecay",
    "LearnedPositions",
    "NTKAware",
    "PositionInterpolation",
    "RopeScaling",
    "SelectiveRotation",
    "SinusoidalPositions",
    "YaRN",
    "apply_rope",
]
