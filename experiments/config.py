"""What one cell (a variant trained with one seed) is: every value that shapes a training run."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Config:
    """The resolved settings of a comparison; equal for all its cells. Presets are in presets.py."""

    data: str = "stdlib"
    """data set to train on; `python -m experiments data` names them"""
    layers: int = 2
    """transformer blocks"""
    dim: int = 128
    """model width"""
    heads: int = 4
    """attention heads; divides dim"""
    num_features: int = 64
    """random features M per head for the FAVOR+ arms; even (elu+1 and relu have M = dim / heads)"""
    context: int = 256
    """sequence length N in tokens (bytes)"""
    batch_size: int = 4
    """sequences per optimiser step"""
    steps: int = 360
    """optimiser steps"""
    learning_rate: float = 2e-3
    """peak learning rate of AdamW; the same for every arm"""
    warmup_steps: int = 40
    """steps of linear warm-up, before the cosine decay to a tenth of the peak"""
    weight_decay: float = 0.1
    """AdamW weight decay, on matrices only"""
    gradient_clip: float = 1.0
    """largest gradient norm of an update"""
    dropout: float = 0.0
    """dropout on attention output and MLP"""
    redraw_every: int = 0
    """training steps between redraws of the random features; 0 draws them once"""
    denominator: Literal["unrotated", "rotated"] = "unrotated"
    """denominator of linear attention with RoPE after the map (RoFormer eq. 19: unrotated)"""
    log_every: int = 10
    """steps between training-loss records"""
    evaluate_every: int = 40
    """steps between evaluations on the validation split"""
    evaluation_windows: int = 48
    """windows of `context` tokens of the validation split, evenly spaced, the same at every evaluation"""
    test_windows: int = 256
    """windows of the test split, evenly spaced, for the final figure"""
    checkpoint_every: int = 100
    """steps between checkpoints"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast (weights, angles, exponents, states and denominators stay in float32)"""
    threads: int = 1
    """CPU threads of each worker; part of the configuration because it changes the last bits of sums"""

    def __post_init__(self) -> None:
        at_least_one = (
            "layers dim heads num_features context batch_size steps log_every evaluate_every "
            "evaluation_windows test_windows checkpoint_every threads"
        ).split()
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give 1 or more")
        for name in ("warmup_steps", "redraw_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; give 0 or more")
        if self.context < 2:
            raise ValueError(f"context is {self.context}; give 2 or more, or there is no past to attend to")
        if self.dim % self.heads:
            raise ValueError(f"dim {self.dim} is not divisible by heads {self.heads}; change one of them")
        if (self.dim // self.heads) % 2:
            raise ValueError(f"dim / heads is {self.dim // self.heads}; RoPE rotates pairs, so make it even")
        if self.num_features % 2:
            raise ValueError(
                f"num_features {self.num_features} is odd; RoPE rotates pairs of features, so give an even number, "
                f"such as {self.num_features + 1}"
            )
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate is {self.learning_rate}; give a positive finite number")
        if not 0 <= self.weight_decay < float("inf"):
            raise ValueError(f"weight_decay is {self.weight_decay}; give 0 or a positive finite number")
        if not self.gradient_clip > 0:
            raise ValueError(f"gradient_clip is {self.gradient_clip}; give a positive number")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; give 0 or more and less than 1")

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.context
