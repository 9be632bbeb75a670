"""Position encodings by name; one more is a file beside this one and a line here, or a package's entry point.

An encoding is what its place in a model asks for: a class of modules for the token embeddings
(:class:`EmbeddingPositions`), for the input of every block (:class:`BlockPositions`) or for the scores of softmax
attention (:class:`ScorePositions`), or else settings of the attention (:class:`InAttention`).
"""

from collections.abc import Mapping
from inspect import signature
from typing import Any

from linear_rope.positions.absolute import EmbeddingPositions, LearnedPositions, SinusoidalPositions
from linear_rope.positions.blocks import BlockPositions
from linear_rope.positions.complex_order import ComplexOrder
from linear_rope.positions.deberta import Deberta
from linear_rope.positions.floater import Floater
from linear_rope.positions.huang import Huang
from linear_rope.positions.scores import ScorePositions
from linear_rope.positions.shaw import Shaw
from linear_rope.positions.t5 import T5Buckets
from linear_rope.positions.transformer_xl import TransformerXL
from linear_rope.positions.tupe import Tupe
from linear_rope.registry import Registry, taken


class InAttention:
    """Positions that the attention tells by itself.

    Args:
        settings: of the attention, which has to take them all; of several, the first that it takes, or else the first.
    """

    def __init__(self, *settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def of(self, taken: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings for an attention that takes the arguments named ``taken``."""
        return next((each for each in self.settings if each.keys() <= taken.keys()), self.settings[0])


PositionEncoding = type[EmbeddingPositions] | type[BlockPositions] | type[ScorePositions] | InAttention

POSITIONS: Registry[PositionEncoding] = Registry(
    "position",
    "linear_rope.positions",
    {
        "none": InAttention({}),
        "learned": LearnedPositions,
        "sinusoidal": SinusoidalPositions,
        # What softmax attention adds to its scores is a decay of linear attention's.
        "alibi": InAttention({"alibi": True}, {"decay": "alibi"}),
        "rope-before": InAttention({"rope": "before"}),
        "rope-after": InAttention({"rope": "after"}),
        "selective-before": InAttention({"rope": "before", "rope_angles": "selective"}),
        "selective-after": InAttention({"rope": "after", "rope_angles": "selective"}),
        "xpos": InAttention({"rope": "xpos"}),
        "pope": InAttention({"rope": "pope"}),
        "shaw": Shaw,
        "transformer-xl": TransformerXL,
        "t5": T5Buckets,
        "tupe": Tupe,
        "deberta": Deberta,
        "huang": Huang,
        "complex": ComplexOrder,
        "floater": Floater,
    },
    argument=True,
)


def find_position(name: str) -> PositionEncoding:
    """The position encoding of a name.

    Raises:
        ValueError: an unknown name, or an entry point that is something else.
    """
    found = POSITIONS[name]
    kinds = (EmbeddingPositions, BlockPositions, ScorePositions)
    if not isinstance(found, InAttention) and not (isinstance(found, type) and issubclass(found, kinds)):
        raise ValueError(
            f"position is {name!r}, and a package has {found!r} for it; give an InAttention, or a subclass of "
            f"{', '.join(kind.__name__ for kind in kinds)}"
        )
    return found


def sets(position: str, name: str) -> bool:
    """Whether an encoding can be the attention's own setting ``name``, as "rope"."""
    encoding = find_position(position)
    return isinstance(encoding, InAttention) and any(name in each for each in encoding.settings)


def is_outside_attention(name: str) -> bool:
    """Whether a model has this encoding once, for the embeddings or for every block's input."""
    encoding = find_position(name)
    return not isinstance(encoding, InAttention) and issubclass(encoding, EmbeddingPositions | BlockPositions)


def has_table(name: str) -> bool:
    """Whether a model of this encoding has no positions beyond its ``max_length``."""
    encoding = find_position(name)
    return not isinstance(encoding, InAttention) and "max_length" in signature(encoding).parameters


def make_score_positions(
    score_positions: str | ScorePositions, *, dim: int, heads: int, head_dim: int, causal: bool
) -> ScorePositions | None:
    """The encoding of a name, or the one given; None for "none".

    Raises:
        ValueError: no name of an encoding that acts on scores, or one that is made for other heads.
    """
    if isinstance(score_positions, ScorePositions):
        score_positions.check_heads(heads, head_dim)
        return score_positions
    if score_positions == "none":
        return None
    encoding = find_position(score_positions)
    if isinstance(encoding, InAttention) or not issubclass(encoding, ScorePositions):
        names = [
            name for name, each in POSITIONS.items() if isinstance(each, type) and issubclass(each, ScorePositions)
        ]
        raise ValueError(
            f"score_positions is {score_positions!r}, which is not a part of scores; choose from 'none', "
            f"{', '.join(map(repr, names))}, or give a ScorePositions"
        )
    settings = {"dim": dim, "heads": heads, "head_dim": head_dim, "causal": causal}
    return encoding(**taken(encoding, settings))
