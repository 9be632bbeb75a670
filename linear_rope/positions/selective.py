"""Selective RoPE: angles that the tokens decide (Movahedi et al. 2025, arXiv 2511.17388).

The angle of pair i at position m is θ_i · Φ_{m,i} with Φ_m = Σ_{t≤m} f(x_t); f = 1 is RoPE.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope.checks import check_choice
from linear_rope.positions.rotary import rope_frequencies


@dataclass(frozen=True)
class SelectiveRotation:
    """How f is made of a token, each head's part of which is scaled to length one.

    Raises:
        ValueError: a value that it cannot be.
    """

    rank: int | None = 8
    """of the projection from a token to all pairs of all heads; None projects each head's part of it by itself"""
    bias: bool = False
    """whether each pair has a learned constant speed of its own"""
    gate: bool = False
    """whether f is multiplied by a head's σ(w·x_t + b)"""
    init: Literal["rope", "paper"] = "rope"
    """"rope" adds the projection to 1, so that training begins close to RoPE; "paper" is the projection alone, with
    PyTorch's usual variance"""

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank is {self.rank}; give 1 or more, or None")
        check_choice("init", self.init, ("rope", "paper"))


class SelectiveAngles(nn.Module):
    """The angles of one attention.

    Args:
        settings: how f is made.
        dim: width of the tokens; divisible by ``heads``.
        heads: H.
        width: channels that are rotated in each head; even.
        base: θ_i = base^(−2i/width).
    """

    def __init__(self, settings: SelectiveRotation, dim: int, heads: int, width: int, base: float) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"selective angles need a dim that heads divides; dim is {dim}, heads {heads}")
        self.settings, self.heads, self.width, self.base = settings, heads, width, base
        pairs, of_head, rank = width // 2, dim // heads, settings.rank
        shapes = [(rank, dim), (heads * pairs, rank)] if rank is not None else [(heads * pairs, of_head)]
        self.projections = nn.ParameterList(nn.Parameter(torch.empty(shape)) for shape in shapes)
        for weight in self.projections:
            nn.init.normal_(weight, std=INITIAL_STD)
        self.bias = nn.Parameter(torch.zeros(heads * pairs)) if settings.bias else None
        self.gate = nn.Parameter(nn.init.normal_(torch.empty(heads, dim), std=INITIAL_STD)) if settings.gate else None
        self.gate_bias = nn.Parameter(torch.zeros(heads)) if settings.gate else None

    def inputs(self, x: Tensor) -> Tensor:
        """What the convolution is applied to, (B, N, dim) → (B, N, H·width/2)."""
        x = F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (self.heads, -1)), dim=-1)
        # Weights begin with a standard deviation of 0.02; PyTorch's is 1 / √(3 · inputs).
        gains = [
            1.0 if self.settings.init == "rope" else (INITIAL_STD * math.sqrt(3 * w.shape[1])) ** -1
            for w in self.projections
        ]
        if self.settings.rank is None:
            weight = self.projections[0].to(x.dtype).unflatten(0, (self.heads, -1))
            return torch.einsum("bnhd,hpd->bnhp", x, weight).flatten(2) * gains[0]
        x = x.flatten(2)
        for weight, gain in zip(self.projections, gains, strict=True):
            x = F.linear(x, weight.to(x.dtype)) * gain
        return x

    def forward(
        self, x: Tensor, convolved: Tensor, key_padding_mask: Tensor | None, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The angles (B, H, N, width / 2), reduced to one turn, and Φ after the last token (B, H, width / 2), float64.

        Args:
            x: (B, N, dim) the tokens.
            convolved: (B, N, H·width/2), of :meth:`inputs`.
            key_padding_mask: (B, N) bool, True at padding, which does not turn.
            before: Φ before the first token; default 0.
        """
        speed = convolved if self.bias is None else convolved + self.bias.to(convolved.dtype)
        if self.settings.init == "rope":
            speed = speed + 1
        speed = speed.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if self.gate is not None and self.gate_bias is not None:
            logits = F.linear(x.to(speed.dtype), self.gate.to(speed.dtype), self.gate_bias.to(speed.dtype))
            speed = speed * logits.sigmoid().mT.unsqueeze(-1)
        if key_padding_mask is not None:
            speed = speed.masked_fill(key_padding_mask[:, None, :, None], 0)
        frequencies = rope_frequencies(self.width, base=self.base, device=x.device)
        phase = speed.to(frequencies.dtype).cumsum(-2)
        if before is not None:
            phase = phase + before.unsqueeze(-2)
        return torch.remainder(phase * frequencies, 2 * math.pi).to(speed.dtype), phase[:, :, -1]


INITIAL_STD = 0.02
