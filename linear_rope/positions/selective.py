"""Selective RoPE: angles that the tokens decide (Movahedi et al. 2025, arXiv 2511.17388).

The angle of pair i at position m is θ_i · Φ_{m,i} with Φ_m = Σ_{t≤m} f(x_t); f = 1 is RoPE.

``init="paper"`` is the formula of that paper's code (github.com/timurcarstensen/selective-rope), without its learned θ
and its other gates. What differs still: its defaults are rank 16 and a base of 500,000, which here have to be given,
``SelectiveRotation(rank=16, init="paper")`` and ``rope_base=500_000``; weights begin normal with its variance, not
uniform; and pairs are neighbouring channels, not channels of two halves. ``init="rope"`` is ours: training begins close
to RoPE.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope.checks import check_at_least, check_choice
from linear_rope.positions.rotary import rope_frequencies
from linear_rope.positions.segments import beginnings


@dataclass(frozen=True)
class SelectiveRotation:
    """How f is made of a token, each head's part of which is scaled to length one.

    Raises:
        ValueError: a value that it cannot be.
    """

    rank: int | None = 8
    """of the projection from a token to all pairs of all heads; None projects each head's part of it by itself, with
    "paper" by columns of length one times a learned number a head"""
    bias: bool = False
    """whether each pair has a learned constant speed b of its own; with "paper" it is exp(b), which begins at 1"""
    gate: bool = False
    """whether f is multiplied by a head's 2·σ(w·x_t + b), which begins near 1; with "paper" by σ alone, of the token's
    parts of length one"""
    init: Literal["rope", "paper"] = "rope"
    """"rope" adds the projection, and a convolution of it that begins at or near zero, to 1: training begins close to
    RoPE. "paper" is the convolution of the projection alone, with PyTorch's usual variance"""

    def __post_init__(self) -> None:
        check_at_least(1, rank=1 if self.rank is None else self.rank)
        check_choice("init", self.init, ("rope", "paper"))


class SelectiveAngles(nn.Module):
    """The angles of one attention whose tokens have the width ``dim``, divisible by ``heads``; ``width`` channels of
    each head are rotated, θ_i = base^(−2i/width).
    """

    def __init__(self, settings: SelectiveRotation, dim: int, heads: int, width: int, base: float) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"selective angles need a dim that heads divides; dim is {dim}, heads {heads}")
        self.settings, self.heads, self.width, self.base = settings, heads, width, base
        self.is_paper = settings.init == "paper"
        pairs, of_head, rank = width // 2, dim // heads, settings.rank
        shapes = [(rank, dim), (heads * pairs, rank)] if rank is not None else [(heads * pairs, of_head)]
        self.projections = nn.ParameterList(nn.Parameter(torch.empty(shape)) for shape in shapes)
        for weight in self.projections:
            nn.init.normal_(weight, std=INITIAL_STD)
        # One more than this is the factor: models begin with vectors of zeros.
        self.scale = nn.Parameter(torch.zeros(heads)) if rank is None and self.is_paper else None
        self.bias = nn.Parameter(torch.zeros(heads * pairs)) if settings.bias else None
        self.gate = nn.Parameter(nn.init.normal_(torch.empty(heads, dim), std=INITIAL_STD)) if settings.gate else None
        self.gate_bias = nn.Parameter(torch.zeros(heads)) if settings.gate else None

    def _tokens(self, x: Tensor) -> Tensor:
        """(B, N, dim) → (B, N, H, dim/H) of length one."""
        return of_length_one(x.unflatten(-1, (self.heads, -1)))

    def _gain(self, weight: Tensor) -> float:
        # Weights begin with a standard deviation of 0.02; PyTorch's is 1 / √(3 · inputs).
        return (INITIAL_STD * math.sqrt(3 * weight.shape[1])) ** -1 if self.is_paper else 1.0

    def inputs(self, x: Tensor) -> Tensor:
        """What the convolution is applied to, (B, N, dim) → (B, N, H·width/2)."""
        x = self._tokens(x)
        if self.settings.rank is None:
            weight = self.projections[0].to(x.dtype).unflatten(0, (self.heads, -1))
            if self.scale is not None:
                weight = F.normalize(weight, dim=-1) * (1 + self.scale.to(x.dtype))[:, None, None]
            return torch.einsum("bnhd,hpd->bnhp", x, weight).flatten(2)
        x = x.flatten(2)
        for weight in self.projections:
            x = F.linear(x, weight.to(x.dtype)) * self._gain(weight)
        return x

    def speeds(self, inputs: Tensor, convolved: Tensor, weight: Tensor) -> Tensor:
        """f without bias and gate, from :meth:`inputs` and what a convolution of ``weight`` makes of them."""
        return convolved * self._gain(weight) if self.is_paper else inputs + convolved

    def forward(
        self,
        x: Tensor,
        speed: Tensor,
        key_padding_mask: Tensor | None,
        before: Tensor | None,
        segments: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The angles (B, H, N, width / 2), reduced to one turn, and Φ after the last token (B, H, width / 2), float64.

        ``speed`` (B, N, H·width/2) is that of :meth:`speeds`; padding (B, N) does not turn. ``before`` is Φ before the
        first token, by default 0; or Φ begins anew in each of the ``segments`` (B, N).
        """
        if self.bias is not None:
            bias = self.bias.to(speed.dtype)
            speed = speed + (bias.exp() if self.is_paper else bias)
        if not self.is_paper:
            speed = speed + 1
        speed = speed.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if self.gate is not None and self.gate_bias is not None:
            tokens = self._tokens(x).flatten(2) if self.is_paper else x
            gate = self.gate.to(speed.dtype) * self._gain(self.gate)
            logits = F.linear(tokens.to(speed.dtype), gate, self.gate_bias.to(speed.dtype))
            # Twice σ is 1 where training begins.
            speed = speed * logits.sigmoid().mT.unsqueeze(-1) * (1 if self.is_paper else 2)
        if key_padding_mask is not None:
            speed = speed.masked_fill(key_padding_mask[:, None, :, None], 0)
        frequencies = rope_frequencies(self.width, base=self.base, device=x.device)
        speed_of = speed.to(frequencies.dtype)
        phase = speed_of.cumsum(-2)
        if segments is not None:
            at = (
                torch.arange(segments.shape[1], device=x.device).masked_fill(~beginnings(segments), 0).cummax(-1).values
            )
            phase = phase - (phase - speed_of).gather(-2, at[:, None, :, None].expand_as(phase))
        if before is not None:
            phase = phase + before.unsqueeze(-2)
        return torch.remainder(phase * frequencies, 2 * math.pi).to(speed.dtype), phase[:, :, -1]


def of_length_one(x: Tensor) -> Tensor:
    """``x`` over its length along the last dimension, in float32 or better; zeros stay, with a finite gradient."""
    # Lengths below the root of 1e-6, which other libraries add below the root, are of no vector of a model.
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1, eps=1e-3)


INITIAL_STD = 0.02
