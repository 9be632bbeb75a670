"""The shape of a model: what there is of everything, and how positions enter."""

import math
from dataclasses import dataclass, replace
from typing import Any, Self

from linear_rope.attention.registry import ATTENTIONS
from linear_rope.checks import check_at_least, check_choice, check_fraction
from linear_rope.features.registry import FEATURE_MAPS
from linear_rope.ops.linear.rotated_features import Denominator, PairDenominator
from linear_rope.positions.decay import DECAYS, PAIR_DECAYS
from linear_rope.positions.registry import is_outside_attention, sets
from linear_rope.positions.rope_scaling import RopeScaling, check_scaling
from linear_rope.positions.rotary import BASE

ACROSS = ("kv_heads", "qk_norm", "output_norm", "output_gate")
"""additions to an attention that a cross-attention has too"""
ADDITIONS = (
    *("rope_base", "rope_scaling", "rope_fraction", "rope_phase"),
    *("decay", "pair_denominator", "beta_range", "local_conv", "short_conv", "window"),
    *ACROSS,
)
"""fields of :class:`ModelConfig` that are arguments of an attention, of the same names and with the same defaults; one
that is not as by default is an error where the attention takes none"""


@dataclass(frozen=True, kw_only=True)
class AttentionSettings:
    """The attention of one layer of a :class:`ModelConfig`, whose fields these are; None is as the model has it."""

    attention: str | None = None
    feature_map: str | None = None
    num_features: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    position: str | None = None
    denominator: Denominator | None = None
    rope_base: float | None = None
    rope_fraction: float | None = None
    rope_phase: str | None = None
    decay: str | None = None
    pair_denominator: PairDenominator | None = None
    beta_range: str | None = None
    local_conv: int | None = None
    short_conv: int | None = None
    window: int | None = None
    qk_norm: bool | None = None
    output_norm: bool | None = None
    output_gate: bool | str | None = None
    redraw_every: int | None = None


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model.

    Raises:
        ValueError: values that do not fit each other; the attention checks the rest.
    """

    vocab_size: int = 256
    """number of token ids; 256 for bytes"""
    dim: int = 128
    """model width"""
    layers: int = 2
    """number of blocks"""
    heads: int = 4
    """attention heads; divides dim"""
    kv_heads: int | None = None
    """heads of keys and values, each for as many query heads; divides heads; None for as many"""
    max_length: int = 256
    """positions in the table of "learned" and "tupe"; no limit for the other encodings"""
    attention: str = "linear"
    """"softmax", "linear" (with ``feature_map``), or another of linear_rope.attention.registry"""
    feature_map: str = "favor+"
    """"favor+", "favor+hyperbolic", "favor+paired", "elu+1", "elu+1+paired", "relu", or another of
    linear_rope.features.registry; for linear attention"""
    num_features: int | None = None
    """M of the random feature maps; even; None takes the even number next to D·ln D"""
    position: str = "rope-after"
    """how positions enter. With every attention: "none"; "learned", "sinusoidal" and "complex", of the embeddings;
    "floater", of every block's input; "alibi"; "rope-before" and "selective-before". With a feature map "rope-after"
    and "selective-after". With softmax attention "shaw", "transformer-xl", "t5", "tupe", "deberta", "huang",
    "xpos" and "pope". Or another of linear_rope.positions.POSITIONS"""
    denominator: Denominator = "unrotated"
    """denominator of linear attention with RoPE after the map"""
    rope_base: float = BASE
    """θ_i = rope_base^(−2i/width)"""
    rope_scaling: RopeScaling | None = None
    """other angles for sequences longer than those of training, see linear_rope.positions.rope_scaling; no part of the
    weights"""
    rope_fraction: float = 1.0
    """share of the width that RoPE rotates, in (0, 1]"""
    rope_phase: str = "none"
    """"learned" adds a phase of each head and pair, of "pope" and of a rotation after the map"""
    decay: str = "none"
    """how much of the past each head keeps at each token: "none" for all of it, "fixed", "alibi", "retnet" or "gate",
    with linear attention and the delta rule "pair" or "pair-fixed", of each pair of features, and with the delta rule
    "channel"; see linear_rope.positions.decay"""
    pair_denominator: PairDenominator = "same"
    """with a decay of pairs, whether the unrotated denominator fades as they do, or as their mean ("head")"""
    beta_range: str = "one"
    """β of the delta rule is from 0 to "one", or to "two" with negative eigenvalues"""
    local_conv: int = 0
    """tokens in a weighted sum of values that is added to the heads' output; 0 for none"""
    short_conv: int = 0
    """tokens in a weighted sum of queries, keys and values that is added to each; 0 for none"""
    window: int | None = None
    """tokens that a token sees, itself and those before it, where the attention keeps them all (softmax attention)"""
    qk_norm: bool = False
    """normalise each head's queries and keys before map and rotation, with a learned gain of the head"""
    output_norm: bool = False
    """normalise each head's output, with a learned gain of each channel"""
    output_gate: bool | str = False
    """multiply the heads' output by a gate of the token: True for SiLU, or the "sigmoid" itself"""
    mlp_ratio: int = 4
    """hidden width of the MLP over dim"""
    mlp_width: int | None = None
    """hidden width of the MLP; None for mlp_ratio · dim"""
    dropout: float = 0.0
    """on the outputs of attention and MLP, in training"""
    redraw_every: int | None = None
    """training-mode forward passes between redraws of random features; None draws once"""
    seed: int = 0
    """of the initial weights"""
    feature_seed: int = 0
    """of the random features; every layer draws its own"""
    initial_std: float = 0.02
    """standard deviation of the initial matrices; GPT-2's by default"""
    pattern: tuple[AttentionSettings, ...] = ()
    """what the attention of layer l has otherwise than the model, pattern[l % len(pattern)]: a hybrid, as of linear and
    softmax attention by turns (MiniMax-01, arXiv 2501.08313). What positions add to embeddings, or to every block's
    input, is one for all layers"""

    @classmethod
    def recommended(cls, **settings: Any) -> Self:
        """A model whose attention is :meth:`LinearRoPEAttention.recommended`; ``settings`` are fields of the class."""
        fades = sets(settings.get("position", cls.position), "decay")  # the position is a decay itself
        return cls(**{"feature_map": "elu+1", "decay": "none" if fades else "fixed"} | settings)

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "dim", "layers", "heads", "max_length", "mlp_ratio", "mlp_width")
        given = {name: getattr(self, name) for name in sizes if name != "mlp_width" or self.mlp_width is not None}
        check_at_least(1, **given)
        if not 0 < self.initial_std < math.inf:
            raise ValueError(f"initial_std is {self.initial_std}; give a positive number")
        ATTENTIONS[self.attention], FEATURE_MAPS[self.feature_map]  # or they raise ValueError
        check_choice("decay", self.decay, ("none", *DECAYS, *PAIR_DECAYS, "channel"))
        if self.pattern:
            self._check_pattern()
            return
        check_scaling(self.rope_scaling, rotates=sets(self.position, "rope"))
        if self.attention == "softmax" and self.position.endswith("-after"):
            kind = self.position.removesuffix("-after")
            raise ValueError(
                f'position is "{self.position}", but softmax attention has no feature map; give "{kind}-before"'
            )
        if sets(self.position, "decay") and self.decay != "none":
            raise ValueError(
                f'decay is "{self.decay}", but position is "{self.position}", a decay itself; give one of them'
            )

    def without(self, *names: str) -> Self:
        """The same without positions, and with these fields as by default, in every layer."""
        settings = {name: getattr(ModelConfig, name) for name in names} | {"position": "none"}
        own = {name: None for name in settings if hasattr(AttentionSettings, name)}
        return replace(self, **settings, pattern=tuple(replace(each, **own) for each in self.pattern))

    def _check_pattern(self) -> None:
        if not isinstance(self.pattern, tuple) or not all(isinstance(each, AttentionSettings) for each in self.pattern):
            raise ValueError(f"pattern is {self.pattern!r}; give a tuple of AttentionSettings")
        # Each is checked as a model of its own.
        positions = {each.position for each in map(self.of_layer, range(len(self.pattern)))}
        rotates = any(sets(each, "rope") for each in positions)
        check_scaling(self.rope_scaling, rotates=rotates)
        check_fraction("rope_fraction", self.rope_fraction, rotates=rotates)
        outside = {each if is_outside_attention(each) else "none" for each in positions}
        if len(outside) > 1:
            raise ValueError(
                f"pattern has the positions {', '.join(sorted(positions))}, but what is added to embeddings or to "
                "every block's input is one for all layers; give one of them to all, or positions of the attention, "
                'such as "rope-before" and "none"'
            )

    def of_layer(self, layer: int) -> Self:
        """The model whose every layer has the attention that this one has in ``layer``."""
        if not self.pattern:
            return self
        own = self.pattern[layer % len(self.pattern)]
        settings = {name: value for name, value in vars(own).items() if value is not None}
        if not sets(settings.get("position", self.position), "rope"):
            settings = {"rope_scaling": None, "rope_fraction": ModelConfig.rope_fraction} | settings
        return replace(self, pattern=(), **settings)
