"""An exact window with the FAVOR+ remainder by its definition, quadratic."""

import torch
from torch import Tensor

from linear_rope.ops.decay import fading


def windowed_reference(
    q: Tensor, k: Tensor, v: Tensor, mapped_q: Tensor, mapped_k: Tensor, window: int, log_decay: Tensor | None = None
) -> Tensor:
    """The output (B, H, N, Dv); φ(q) and φ(k) (B, H, N, M) are given."""
    length = q.shape[2]
    behind = torch.arange(length, device=q.device).unsqueeze(-1) - torch.arange(length, device=q.device)
    exact = (q @ k.mT * q.shape[-1] ** -0.5).exp()
    weights = torch.where(behind < window, exact, mapped_q @ mapped_k.mT).masked_fill(behind < 0, 0)
    if log_decay is not None:
        weights = weights * fading(log_decay, weights.dtype, causal=True).exp()
    return weights / weights.sum(-1, keepdim=True) @ v
