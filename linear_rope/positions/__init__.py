"""Position encodings: of vectors (rotary, absolute) or of scores (ALiBi)."""

from linear_rope.positions.absolute import LearnedPositions, SinusoidalPositions
from linear_rope.positions.rope_scaling import NTKAware, PositionInterpolation, RopeScaling, YaRN
from linear_rope.positions.rotary import apply_rope

__all__ = [
    "LearnedPositions",
    "NTKAware",
    "PositionInterpolation",
    "RopeScaling",
    "SinusoidalPositions",
    "YaRN",
    "apply_rope",
]
