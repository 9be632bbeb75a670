"""Position encodings: of tokens and blocks, of vectors (rotary, selective), of scores and of the past (decay)."""

from linear_rope.positions.absolute import EmbeddingPositions, LearnedPositions, SinusoidalPositions
from linear_rope.positions.blocks import BlockPositions
from linear_rope.positions.complex_order import ComplexOrder
from linear_rope.positions.deberta import Deberta
from linear_rope.positions.decay import DECAYS, Decay, FixedDecay, GatedDecay
from linear_rope.positions.floater import Floater
from linear_rope.positions.huang import Huang
from linear_rope.positions.registry import POSITIONS, InAttention
from linear_rope.positions.rope_scaling import NTKAware, PositionInterpolation, RopeScaling, YaRN
from linear_rope.positions.rotary import apply_rope
from linear_rope.positions.scores import ScorePositions
from linear_rope.positions.selective import SelectiveRotation
from linear_rope.positions.shaw import Shaw
from linear_rope.positions.t5 import T5Buckets
from linear_rope.positions.tables import PositionTable
from linear_rope.positions.transformer_xl import TransformerXL
from linear_rope.positions.tupe import Tupe

__all__ = [
    "DECAYS",
    "POSITIONS",
    "BlockPositions",
    "ComplexOrder",
    "Deberta",
    "Decay",
    "EmbeddingPositions",
    "FixedDecay",
    "Floater",
    "GatedDecay",
    "Huang",
    "InAttention",
    "LearnedPositions",
    "NTKAware",
    "PositionInterpolation",
    "PositionTable",
    "RopeScaling",
    "ScorePositions",
    "SelectiveRotation",
    "Shaw",
    "SinusoidalPositions",
    "T5Buckets",
    "TransformerXL",
    "Tupe",
    "YaRN",
    "apply_rope",
]
