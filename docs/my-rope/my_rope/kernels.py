"""An attention kernel: softmax attention to what is near."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope import apply_rope


class Windowed(nn.Module):
    """Softmax attention to the ``window`` nearest tokens, itself the first; causal: none that come later."""

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        causal: bool = False,
        rope: str = "none",
        rope_base: float = 1e4,
        window: int = 16,
    ) -> None:
        super().__init__()
        if rope == "after":
            raise ValueError('rope is "after", but windowed attention has no feature map; give "before" or "none"')
        self.heads, self.causal, self.rope, self.rope_base, self.window = heads, causal, rope, rope_base, window
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """(B, N, dim) → (B, N, dim); key_padding_mask (B, N) is True at padding; positions are (N,) or (B, N)."""
        if context is not None:
            raise ValueError("context was given, but windowed attention is of a sequence to itself; leave it out")
        batch, length, dim = x.shape
        q, k, v = (
            project(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        order = torch.arange(length, device=x.device)
        if self.rope == "before":
            where = order if positions is None else positions
            q, k = (apply_rope(y, where, base=self.rope_base) for y in (q, k))
        distance = order[:, None] - order
        seen = (distance.abs() < self.window) & ((distance >= 0) | (not self.causal))
        if key_padding_mask is not None:
            # Padding sees itself, so that no row is empty; nobody else sees it.
            seen = seen & ~key_padding_mask[:, None, None, :] | (distance == 0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(y.transpose(1, 2).reshape(batch, length, dim))
