"""PoPE: polar coordinates as positions (Gopalakrishnan et al. 2025, arXiv 2509.10534), and a learned phase.

A channel c of a query or key is a complex number whose length softplus(x_c) is the token's and whose angle n·θ_c is the
position's, θ_c = base^(−c/D) for all D channels. So a score is Σ_c softplus(q_c) softplus(k_c) cos((m − n)·θ_c + φ_c),
over √D as published. The phase φ_c begins at 0, as the paper has it for sequences longer than those of training. There
it is kept between −2π and 0; a phase that begins at the end of a turn has to pass it, so here it is free.

With every feature both members of its pair, RoPE after the map rotates φ(x)_c·(1, 1) by the same angles, and its score
is twice that sum with the map in place of softplus: linear attention has as a weight what PoPE's softmax is of.
"""

import math

import torch.nn.functional as F
from torch import Tensor

from linear_rope.positions.rotary import rotate
from linear_rope.small_calls import cosine_and_sine


def polar(x: Tensor, rotation: Tensor) -> Tensor:
    """(..., N, D), float32 or float64, at the angles of ``rotation`` (..., N, D, 2): (..., N, 2·D)."""
    return (F.softplus(x.contiguous(), threshold=40.0).unsqueeze(-1) * rotation).flatten(-2)


def scaled_query(q: Tensor) -> Tensor:
    """So that a product over the root of its width 2·D is one over √D."""
    return q * math.sqrt(2)


def with_phase(rotation: Tensor, phase: Tensor | None) -> Tensor:
    """The rotation of keys turned back by a phase of each head and pair, which adds it to the angle of each score.

    Args:
        rotation: (N, P, 2), or broadcastable to (B, H, N, P, 2).
        phase: (H·P,) radians; None leaves it as it is.

    Returns:
        Broadcastable to (B, H, N, P, 2).
    """
    if phase is None:
        return rotation
    rotation = rotation if rotation.dim() == 5 else rotation[None, None]
    turn = cosine_and_sine(-phase.to(rotation.dtype).view(-1, 1, rotation.shape[-2]))
    return rotate(rotation.flatten(-2), turn).unflatten(-1, (-1, 2))
