"""Short causal convolutions of each channel by itself, which skip padding."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope.positions.tokens import last_where


class ShortConvolution(nn.Module):
    """A weighted sum over the last tokens, and over the next ones where attention looks ahead.

    Its weights are zero when it is made; :func:`linear_rope.blocks.initialise` draws them as it draws every matrix.

    Args:
        channels: C.
        width: tokens looked back upon, the present one among them; 2 or more.
        causal: not the tokens that follow; otherwise as many as before.
    """

    def __init__(self, channels: int, width: int, *, causal: bool) -> None:
        super().__init__()
        if width < 2:
            raise ValueError(f"the width of a convolution is {width}; give 2 or more, or 0 for none")
        self.width = width
        self.causal = causal
        self.weight = nn.Parameter(torch.zeros(channels, width if causal else 2 * width - 1))

    def forward(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        before: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """(B, N, C) → (B, N, C), zero at padding (B, N), over which neighbours reach.

        ``before`` (B, width − 1, C) are the tokens before the first, by default zeros; tokens of other ``segments`` (B,
        N), which go without ``before``, are no neighbours.
        """
        if key_padding_mask is not None:
            at = last_where(key_padding_mask)
            order = at.unsqueeze(-1).expand_as(x)
            together = self._convolved(x.gather(1, order), before, None if segments is None else segments.gather(1, at))
            return torch.zeros_like(x).scatter(1, order, together).masked_fill(key_padding_mask.unsqueeze(-1), 0)
        return self._convolved(x, before, segments)

    def _convolved(self, x: Tensor, before: Tensor | None, segments: Tensor | None) -> Tensor:
        past = self.width - 1
        weight = self.weight.to(x.dtype)
        if segments is not None:
            taps = (self._tap(x, segments, weight[:, at], at - past) for at in range(weight.shape[1]))
            return torch.stack([*taps]).sum(0)
        if before is not None:
            padded = torch.cat((before.to(x.dtype), x), dim=1)
            if x.shape[1] == 1:  # a convolution wakes threads, also for one token
                return (padded * weight.mT).sum(1, keepdim=True)
            padded = padded.mT
        else:
            padded = F.pad(x.mT, (past, 0 if self.causal else past))
        return F.conv1d(padded, weight.unsqueeze(1), groups=x.shape[-1]).mT

    def _tap(self, x: Tensor, segments: Tensor, weight: Tensor, ahead: int) -> Tensor:
        """What the tokens so many places ahead give those of their own segment."""
        shifted, there = (torch.roll(each, -ahead, dims=1) for each in (x, segments))
        places = torch.arange(x.shape[1], device=x.device) + ahead
        is_near = (there == segments) & (places >= 0) & (places < x.shape[1])
        return shifted.masked_fill(~is_near.unsqueeze(-1), 0) * weight

    def window(self, x: Tensor, key_padding_mask: Tensor | None, before: Tensor | None = None) -> Tensor:
        """(B, width − 1, C), the last tokens of those ``before`` and of ``x``, zero at padding, that are none."""
        past = self.width - 1
        before = x.new_zeros(x.shape[0], past, x.shape[2]) if before is None else before.to(x.dtype)
        together = torch.cat((before, x), dim=1)
        if key_padding_mask is not None:
            # Padding to the front, the rest in order.
            order = last_where(F.pad(~key_padding_mask, (past, 0), value=True))
            together = together.gather(1, order.unsqueeze(-1).expand_as(together))
        return together[:, -past:]

    def extra_repr(self) -> str:
        return f"channels={self.weight.shape[0]}, width={self.width}, causal={self.causal}"
