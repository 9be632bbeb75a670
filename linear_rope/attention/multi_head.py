"""What every attention module shares: projections, heads, argument checks."""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from linear_rope.checks import check_base, check_padding_mask, check_sequences
from linear_rope.positions.rope_scaling import RopeScaling
from linear_rope.positions.tokens import Positions, token_positions


class RoPEAttention(nn.Module):
    """Multi-head attention whose ``_attend`` a subclass defines."""

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int | None,
        causal: bool,
        rope_base: float,
        bias: bool,
        dropout: float,
        rope_scaling: RopeScaling | None = None,
    ) -> None:
        super().__init__()
        if dim < 1 or heads < 1:
            raise ValueError(f"dim is {dim} and heads is {heads}; give 1 or more of each")
        if head_dim is None and dim % heads:
            raise ValueError(f"dim {dim} is not divisible by heads {heads}; change one of them, or give head_dim")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}; give 0 or more and less than 1")
        check_base("rope_base", rope_base)
        self.dim = dim
        self.heads = heads
        self.head_dim = dim // heads if head_dim is None else head_dim
        if self.head_dim < 1:
            raise ValueError(f"head_dim is {head_dim}; give 1 or more")
        self.causal = causal
        self.rope_base = rope_base
        self.rope_scaling = rope_scaling
        width = heads * self.head_dim
        self.query = nn.Linear(dim, width, bias=bias)
        self.key = nn.Linear(dim, width, bias=bias)
        self.value = nn.Linear(dim, width, bias=bias)
        self.out = nn.Linear(width, dim, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, positions: Positions | None
    ) -> Tensor:
        """(B, H, N, D) queries, (B, H, K, D) keys and values → (B, H, N, D)."""
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        positions: Positions | None = None,
    ) -> Tensor:
        """Attend from every token to the tokens of ``context``, or of ``x`` itself.

        Args:
            x: (B, N, dim).
            context: (B, K, dim), or None for self-attention.
            key_padding_mask: (B, K) bool, True at padding, which has no influence whatever it holds.
            positions: (N,) or (B, N), counted from 0, or a pair of these for queries and keys. Default: the count of
                unpadded tokens before each one.

        Returns:
            (B, N, dim); zeros (plus the output bias) for a token that sees no key.

        Raises:
            ValueError: shapes that do not fit, or a context for a causal attention.
        """
        check_sequences("x", x, self.dim)
        if context is not None:
            check_sequences("context", context, self.dim)
            if context.shape[0] != x.shape[0]:
                raise ValueError(f"x has {x.shape[0]} sequences and context {context.shape[0]}; give equally many")
            if self.causal:
                raise ValueError("context was given, but the attention is causal; make it with causal=False")
        source = x if context is None else context
        check_padding_mask(key_padding_mask, *source.shape[:2])
        q, k, v = self._project(*without_padding(x, context, key_padding_mask))
        if positions is None and context is not None and key_padding_mask is not None:
            # The padding is that of the keys; it says nothing about the queries.
            k_positions = token_positions(source.shape[1], key_padding_mask, x.device)
            positions = (token_positions(x.shape[1], None, x.device), k_positions)
        return self._merge(self._attend(q, k, v, key_padding_mask, positions))

    def attention_weights(
        self, x: Tensor, key_padding_mask: Tensor | None = None, positions: Positions | None = None
    ) -> Tensor:
        """The weight of every value in every output of self-attention, (B, H, N, N): the output is weights @ v.

        Quadratic in memory; for looking at, not for training. For linear attention with RoPE after the map these are
        the signed weights of RoFormer eq. 19, whose rows need not sum to one.
        """
        check_sequences("x", x, self.dim)
        check_padding_mask(key_padding_mask, *x.shape[:2])
        q, k, _ = self._project(*without_padding(x, None, key_padding_mask))
        # Attention is linear in its values: the identity as values gives the weights, whatever the implementation.
        identity = torch.eye(x.shape[1], dtype=q.dtype, device=x.device).expand(*q.shape[:2], -1, -1)
        return self._attend(q, k, identity, key_padding_mask, positions)

    def prefill(self, x: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """The whole prompt (B, N, dim) at once: its output, and the state that :meth:`step` goes on from."""
        raise NotImplementedError

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token (B, 1, dim) more: its output, and the state for the next step."""
        raise NotImplementedError

    def _project(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        projected = (self.query(x), self.key(source), self.value(source))
        q, k, v = (rearrange(y, "b n (h d) -> b h n d", h=self.heads) for y in projected)
        return q, k, v

    def _merge(self, y: Tensor) -> Tensor:
        return self.dropout(self.out(rearrange(y, "b h n d -> b n (h d)")))

    def _check_step(self, x: Tensor, method: str, batch: int | None = None) -> None:
        check_sequences("x", x, self.dim)
        if not self.causal:
            raise ValueError(f"{method} needs a causal attention; make it with causal=True")
        if batch is not None and (x.shape[1] != 1 or x.shape[0] != batch):
            raise ValueError(
                f"x has shape {tuple(x.shape)}; step takes one token a sequence: give ({batch}, 1, {self.dim})"
            )


def without_padding(x: Tensor, context: Tensor | None, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """``x`` and what it attends to, with zeros at padding.

    Before the projections, because zero times infinity is not zero in the gradients of their weights.
    """
    source = x if context is None else context
    if key_padding_mask is not None:
        source = source.masked_fill(key_padding_mask.unsqueeze(-1), 0)
    return (source if context is None else x), source


def next_position(x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """(B,) int64: how many unpadded tokens each sequence has."""
    if key_padding_mask is None:
        return torch.full((x.shape[0],), x.shape[1], device=x.device)
    return (~key_padding_mask).sum(-1)
