"""What ``performer_pytorch.Attention`` becomes when it is upgraded: the same submodules, another forward pass."""

from typing import Any

import torch
from torch import Tensor, nn

from linear_rope.attention.projected import without_padding
from linear_rope.interop.performer_kernels import PeerFeatures, peer_attention
from linear_rope.ops.linear.linear_attention import linear_attention
from linear_rope.positions.rotary import rotate
from linear_rope.positions.tokens import token_positions


class UpgradedAttention(nn.Module):
    """Performer attention that sees no future and no padding; made by :func:`linear_rope.interop.performer.upgrade`.

    It has the parameters and buffers of the module that it was, by the same names.

    Attributes:
        rope: "after" rotates the features of queries and keys, "before" rotates these as the peer does.
        peer_class: what it was.
    """

    to_q: nn.Module
    to_k: nn.Module
    to_v: nn.Module
    to_out: nn.Module
    dropout: nn.Module
    fast_attention: Any
    local_attn: nn.Module | None
    feature_map: PeerFeatures
    heads: int
    global_heads: int
    rope: str
    peer_class: Any

    def forward(
        self,
        x: Tensor,
        pos_emb: Tensor | None = None,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        **ignored: Any,
    ) -> Tensor:
        """Attend from every token to those of ``context``, or of ``x`` itself; the arguments are the peer's.

        ``pos_emb`` (1, N, D) are sines and cosines by which ``rope="before"`` rotates self-attention; a token's row is
        the count of tokens before it that are no padding. Masks are bool, False at padding.

        Raises:
            ValueError: a mask that does not fit, or a context for a causal attention or for local heads.
        """
        if context is not None and (self.fast_attention.causal or self.local_attn is not None):
            raise ValueError("context was given, but the attention is causal or has local heads; give none")
        keep = context_mask if context is not None or context_mask is not None else mask
        _check_mask(keep, x if context is None else context)
        padding = None if keep is None else ~keep
        x, source = without_padding(x, context, padding)
        q, k, v = (
            projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projected in (self.to_q(x), self.to_k(source), self.to_v(source))
        )
        outputs, split = [], self.global_heads
        if split:
            rotation = None if context is not None else pos_emb
            outputs.append(
                self._attend(q[:, :split], k[:, :split], v[:, :split], rotation, padding, across=context is not None)
            )
        if self.local_attn is not None:
            outputs.append(self.local_attn(q[:, split:], k[:, split:], v[:, split:], input_mask=keep))
        return self.dropout(self.to_out(torch.cat(outputs, dim=1).transpose(1, 2).flatten(2)))

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, pos_emb: Tensor | None, padding: Tensor | None, *, across: bool
    ) -> Tensor:
        causal = self.fast_attention.causal
        if self.rope == "after":
            return linear_attention(
                q,
                k,
                v,
                feature_map=self.feature_map,
                rope="none" if across else "after",
                causal=causal,
                key_padding_mask=padding,
            )
        if pos_emb is not None:
            dtype = torch.promote_types(q.dtype, torch.float32)
            rotation = torch.stack(pos_emb[0].to(dtype).chunk(2, dim=-1)[::-1], dim=-1)
            if padding is not None:
                rotation = rotation[token_positions(q.shape[-2], padding, q.device)].unsqueeze(1)
            q, k = (rotate(x.to(dtype), rotation) for x in (q, k))
        return peer_attention(q, k, v, self.feature_map, causal=causal, key_padding_mask=padding)

    def extra_repr(self) -> str:
        return f"rope={self.rope!r}"


def _check_mask(mask: Tensor | None, tokens: Tensor) -> None:
    """Raises ValueError unless the mask is None or bool of the shape of the tokens."""
    if mask is not None and (mask.dtype != torch.bool or mask.shape != tokens.shape[:2]):
        raise ValueError(
            f"mask has dtype {mask.dtype} and shape {tuple(mask.shape)}; give torch.bool and "
            f"{tuple(tokens.shape[:2])}, False at padding"
        )
