"""Attention with linear biases, ALiBi (Press et al. 2021, arXiv 2108.12409): positions for softmax attention."""

import torch
from torch import Tensor


def alibi_slopes(heads: int, *, device: torch.device | str | None = None) -> Tensor:
    """How much each head subtracts from a score per position of distance (section 3 of the paper).

    2^(−8h/H) for h = 1, ..., H, where H is a power of two. Otherwise the slopes of the largest power of two below H,
    and of those of the power above every other one until there are H, as the authors' implementation has it.

    Returns:
        (H,) float32.
    """
    power = 2 ** (heads.bit_length() - 1)
    exponents = torch.arange(1, power + 1, dtype=torch.float32, device=device) * (-8 / power)
    between = (2 * torch.arange(heads - power, dtype=torch.float32, device=device) + 1) * (-4 / power)
    return torch.exp2(torch.cat((exponents, between)))


def alibi_bias(q_positions: Tensor, k_positions: Tensor, heads: int, *, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of (N,) or (B, 1, N) and (K,) or (B, 1, K) positions: minus the head's slope times
    the distance, (H, N, K) or (B, H, N, K); distances are exact before they are rounded to ``dtype``.
    """
    distances = (q_positions.unsqueeze(-1) - k_positions.unsqueeze(-2)).abs()
    exact = torch.promote_types(dtype, torch.float32)
    return (-alibi_slopes(heads, device=distances.device).to(exact).view(-1, 1, 1) * distances).to(dtype)
