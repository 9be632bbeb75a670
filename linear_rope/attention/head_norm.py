"""The norm of a head's queries or keys."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# As of the heads' outputs in retention and the delta rule: no vector of a model is so short that it matters, and one of
# zeros has a finite gradient.
EPS = 1e-6


class HeadNorm(nn.Module):
    """g_h · x / √(mean x² + ε), the mean over the channels of each head, with a learned gain g of each head.

    Args:
        heads: H.
        gain: what each g_h begins with.
    """

    def __init__(self, heads: int, gain: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((heads,), gain))

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, N, D) → (B, H, N, D), in the dtype of ``x``; computed in float32 or better."""
        precise = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = F.rms_norm(precise, x.shape[-1:], eps=EPS)
        return (normed * self.gain.to(normed.dtype)[:, None, None]).to(x.dtype)
