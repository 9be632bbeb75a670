"""xPos: rotation and a decay of each pair of channels (Sun et al. 2022, arXiv 2212.10554)."""

import torch
from torch import Tensor

from linear_rope.checks import check_choice
from linear_rope.positions.rotary import rope_frequencies

GAMMA = 0.4
SCALE_BASE = 512
"""positions over which pair i decays by ζ_i"""


def log_scales(width: int, *, device: torch.device | str | None = None) -> Tensor:
    """ln ζ_i of every pair, ζ_i = (2i/width + γ)/(1 + γ), by which it decays over 512 positions: (width / 2,) float64.

    The paper's γ = 0.4; 512 is the authors' code's.
    """
    dtype = rope_frequencies(width, device=device).dtype
    return ((torch.arange(0, width, 2, dtype=dtype, device=device) / width + GAMMA) / (1 + GAMMA)).log()


def scaled_by_distance(q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys times ζ^((m − c)/512) and ζ^((c − n)/512): their products decay by ζ^((m − n)/512).

    c cancels; it is the middle of the keys' positions. So nothing overflows in float32 and bfloat16 while the positions
    of a sequence span 30,000 at most. Positions are (length,) or (B, 1, length).
    """
    logs = log_scales(q.shape[-1], device=q.device) / SCALE_BASE
    at = k_positions.to(logs.dtype)
    centre = (at.amin(-1, keepdim=True) + at.amax(-1, keepdim=True)) / 2
    dtype = torch.promote_types(q.dtype, torch.float32)

    def scaled(x: Tensor, exponents: Tensor) -> Tensor:
        factors = (exponents.unsqueeze(-1) * logs).exp().to(dtype)
        return (x.to(dtype) * factors.repeat_interleave(2, dim=-1)).to(x.dtype)

    return scaled(q, q_positions - centre), scaled(k, centre - at)


def check_rope(rope: str, choices: tuple[str, ...]) -> None:
    """Raises ValueError for a rotation that is none of ``choices``, with what stands for xPos and PoPE where
    they cannot be."""
    if rope == "xpos" and "xpos" not in choices:
        raise ValueError(
            "rope is 'xpos', a rotation with a decay for each pair of channels, and linear attention has one decay a "
            f'head; give decay="retnet", which is that of RetNet, with rope="{choices[0]}"'
        )
    if rope == "pope" and "pope" not in choices:
        raise ValueError(
            "rope is 'pope', lengths and angles of softmax's scores, and linear attention has none; give "
            'rope="after" with a paired map, such as "elu+1+paired", whose weight is that sum'
        )
    check_choice("rope", rope, choices)
