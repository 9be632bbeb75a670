"""The norms of a head: of its queries and keys, and of its output."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# No vector of a model is so short that it matters, and one of zeros has a finite gradient.
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
        normed = _normed(x)
        return (normed * self.gain.to(normed.dtype)[:, None, None]).to(x.dtype)


class OutputNorm(nn.Module):
    """x / √(mean x² + ε) of each head's output, as RetNet has it (Sun et al. 2023, arXiv 2307.08621, section 2.3), and
    with ``learned`` times a gain of each channel, the same for all heads (GLA: Yang et al. 2023, arXiv 2312.06635).

    Args:
        width: channels of a head.
    """

    def __init__(self, width: int, *, learned: bool) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width)) if learned else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, N, D) → (B, H, N, D), as :class:`HeadNorm` does."""
        normed = _normed(x)
        return (normed if self.gain is None else normed * self.gain.to(normed.dtype)).to(x.dtype)


def _normed(x: Tensor) -> Tensor:
    return F.rms_norm(x.to(torch.promote_types(x.dtype, torch.float32)), x.shape[-1:], eps=EPS)
