"""Attention modules: projections around :func:`linear_rope.linear_attention`, and softmax attention to compare with."""

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from linear_rope.features import FavorPlus, FeatureMap, make_feature_map
from linear_rope.functional.chunked import prefix_sums
from linear_rope.functional.linear_attention import (
    check_choice,
    check_padding_mask,
    linear_attention,
    make_mapping,
)
from linear_rope.functional.mapping import (
    Denominator,
    Mapping,
    Positions,
    Rope,
    check_positions,
    rotations,
    token_positions,
)
from linear_rope.functional.recurrent import State, add_key, read_state
from linear_rope.functional.streaming import can_stream, stream_with_state
from linear_rope.functional.terms import attention_output, full_precision
from linear_rope.rotary import rotate


class LinearAttentionState(NamedTuple):
    """What a causal linear attention carries from token to token; its size does not grow.

    Attributes:
        sums: the state of the recurrence.
        position: (B,) int64, position of the next token.
    """

    sums: State
    position: Tensor


class KeyValueCache(NamedTuple):
    """What a causal softmax attention carries from token to token; it grows by one key and value a token.

    Attributes:
        k, v: (B, H, K, D), keys already rotated.
        key_padding_mask: (B, K) bool, True at padding, or None.
        position: (B,) int64, position of the next token.
    """

    k: Tensor
    v: Tensor
    key_padding_mask: Tensor | None
    position: Tensor


class RoPEAttention(nn.Module):
    """What both kinds of attention share: projections, heads, argument checks."""

    def __init__(
        self, dim: int, heads: int, head_dim: int | None, causal: bool, rope_base: float, bias: bool, dropout: float
    ) -> None:
        super().__init__()
        if dim < 1 or heads < 1:
            raise ValueError(f"dim is {dim} and heads is {heads}; give 1 or more of each")
        if head_dim is None and dim % heads:
            raise ValueError(f"dim {dim} is not divisible by heads {heads}; change one of them, or give head_dim")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}; give 0 or more and less than 1")
        if not 0 < rope_base < math.inf:
            raise ValueError(f"rope_base is {rope_base}; give a positive finite number, such as 10000")
        self.dim = dim
        self.heads = heads
        self.head_dim = dim // heads if head_dim is None else head_dim
        if self.head_dim < 1:
            raise ValueError(f"head_dim is {head_dim}; give 1 or more")
        self.causal = causal
        self.rope_base = rope_base
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
        self._check(x, "x")
        if context is not None:
            self._check(context, "context")
            if context.shape[0] != x.shape[0]:
                raise ValueError(f"x has {x.shape[0]} sequences and context {context.shape[0]}; give equally many")
            if self.causal:
                raise ValueError("context was given, but the attention is causal; make it with causal=False")
        source = x if context is None else context
        check_padding_mask(key_padding_mask, *source.shape[:2])
        q, k, v = self._project(*_without_padding(x, context, key_padding_mask))
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
        self._check(x, "x")
        check_padding_mask(key_padding_mask, *x.shape[:2])
        q, k, _ = self._project(x, x)
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

    def _check(self, x: Tensor, name: str) -> None:
        if x.dim() != 3 or x.shape[-1] != self.dim or x.shape[1] == 0:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; give (batch, length, {self.dim}), length 1 or more")

    def _check_step(self, x: Tensor, method: str, batch: int | None = None) -> None:
        self._check(x, "x")
        if not self.causal:
            raise ValueError(f"{method} needs a causal attention; make it with causal=True")
        if batch is not None and (x.shape[1] != 1 or x.shape[0] != batch):
            raise ValueError(
                f"x has shape {tuple(x.shape)}; step takes one token a sequence: give ({batch}, 1, {self.dim})"
            )


class LinearRoPEAttention(RoPEAttention):
    """Multi-head linear attention with rotary positions after the feature map (RoFormer, arXiv 2104.09864, eq. 19).

    Args:
        dim: width of the inputs and outputs.
        heads: number of heads H.
        head_dim: D; default dim / heads.
        feature_map: "favor+", "favor+hyperbolic", "elu+1", "relu", or a :class:`FeatureMap` for vectors of width D.
        num_features: M for the random maps; even, default the even number next to D·ln D.
        rope: "after" rotates the mapped queries and keys; "before" rotates and then maps; "none".
        denominator: "unrotated" (eq. 19), "rotated" (the sum of the numerator's own weights) or "none".
        causal: a token sees itself and those before it.
        rope_base: θ_i = rope_base^(−2i/width).
        bias: of the four projections.
        dropout: on the output, in training.
        redraw_every: training-mode forward passes between redraws of the random features; None draws once. The count
            and the features are part of the state dict.
        seed: of the random features, which come from a generator of their own.

    Raises:
        ValueError: names the argument, what came, and what would do.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        head_dim: int | None = None,
        feature_map: str | FeatureMap = "favor+",
        num_features: int | None = None,
        rope: Rope = "after",
        denominator: Denominator = "unrotated",
        causal: bool = False,
        rope_base: float = 10000.0,
        bias: bool = False,
        dropout: float = 0.0,
        redraw_every: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(dim, heads, head_dim, causal, rope_base, bias, dropout)
        check_choice("rope", rope, ("after", "before", "none"))
        check_choice("denominator", denominator, ("unrotated", "rotated", "none"))
        self.rope: Rope = rope
        self.denominator: Denominator = denominator
        if isinstance(feature_map, FeatureMap):
            if num_features is not None or redraw_every is not None:
                raise ValueError(
                    "num_features and redraw_every belong to the feature map; set them on the FeatureMap that is given"
                )
            if feature_map.head_dim not in (None, self.head_dim):
                raise ValueError(
                    f"feature_map was made for head_dim {feature_map.head_dim}, but the heads have {self.head_dim}; "
                    f"make it with head_dim={self.head_dim}"
                )
            self.feature_map = feature_map
        else:
            self.feature_map = make_feature_map(
                feature_map, self.head_dim, num_features=num_features, redraw_every=redraw_every, seed=seed
            )
        features = self.feature_map.num_features or self.head_dim
        if rope == "after" and features % 2:
            name = "num_features" if isinstance(self.feature_map, FavorPlus) else "head_dim"
            raise ValueError(
                f'{name} is {features}, but rope="after" rotates pairs of features; give an even number, such as '
                f"{features + 1}"
            )
        if rope == "before" and self.head_dim % 2:
            raise ValueError(
                f'head_dim is {self.head_dim}, but rope="before" rotates pairs of channels; give an even number'
            )

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        positions: Positions | None = None,
    ) -> Tensor:
        if isinstance(self.feature_map, FavorPlus):
            self.feature_map.maybe_redraw()
        return super().forward(x, context, key_padding_mask, positions)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, positions: Positions | None
    ) -> Tensor:
        return linear_attention(
            q,
            k,
            v,
            feature_map=self.feature_map,
            rope=self.rope,
            denominator=self.denominator,
            causal=self.causal,
            key_padding_mask=key_padding_mask,
            positions=positions,
            rope_base=self.rope_base,
        )

    def _mapping(
        self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, positions: Positions | None
    ) -> Mapping:
        return make_mapping(
            q,
            k,
            v,
            feature_map=self.feature_map,
            rope=self.rope,
            denominator=self.denominator,
            key_padding_mask=key_padding_mask,
            positions=positions,
            rope_base=self.rope_base,
        )

    def prefill(self, x: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, LinearAttentionState]:
        """The whole prompt at once.

        Args:
            x: (B, N, dim).
            key_padding_mask: (B, N) bool, True at padding.

        Returns:
            (B, N, dim), and the state that :meth:`step` goes on from.
        """
        self._check_step(x, "prefill")
        check_padding_mask(key_padding_mask, *x.shape[:2])
        q, k, v = self._project(*_without_padding(x, None, key_padding_mask))
        with full_precision(x.device):
            mapping = self._mapping(q, k, v, key_padding_mask, None)
            if can_stream() and not torch.is_grad_enabled():
                y, sums = stream_with_state(mapping, q, k, v)
            else:
                terms = mapping.terms(q, k, v)
                prefix, sums = prefix_sums(terms)
                y = attention_output(prefix, terms.query_scale).to(v.dtype)
        return self._merge(y), LinearAttentionState(sums, next_position(x, key_padding_mask))

    def step(self, x: Tensor, state: LinearAttentionState) -> tuple[Tensor, LinearAttentionState]:
        """One token more, in time and memory that do not depend on how many came before.

        Args:
            x: (B, 1, dim).
            state: from :meth:`prefill` or the step before.

        Returns:
            (B, 1, dim), and the state for the next step.
        """
        self._check_step(x, "step", batch=state.position.shape[0])
        q, k, v = self._project(x, x)
        with full_precision(x.device):
            terms = self._mapping(q, k, v, None, state.position.unsqueeze(-1)).terms(q, k, v)
            sums = add_key(state.sums, terms, 0)
            y = attention_output(read_state(terms, sums), terms.query_scale).to(v.dtype)
        return self._merge(y), LinearAttentionState(sums, state.position + 1)

    def extra_repr(self) -> str:
        return f"rope={self.rope!r}, denominator={self.denominator!r}, causal={self.causal}"


class SoftmaxRoPEAttention(RoPEAttention):
    """Multi-head softmax attention with rotary positions (RoFormer, arXiv 2104.09864, eq. 16), on PyTorch's SDPA.

    Args:
        dim: width of the inputs and outputs.
        heads: number of heads H.
        head_dim: D; default dim / heads; even for ``rope="before"``.
        rope: "before" rotates queries and keys before their product; "none".
        causal: a token sees itself and those before it.
        rope_base: θ_i = rope_base^(−2i/D).
        bias: of the four projections.
        dropout: on the output, in training, as in :class:`LinearRoPEAttention`.

    Raises:
        ValueError: names the argument, what came, and what would do.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        head_dim: int | None = None,
        rope: Literal["before", "none"] = "before",
        causal: bool = False,
        rope_base: float = 10000.0,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim, heads, head_dim, causal, rope_base, bias, dropout)
        check_choice("rope", rope, ("before", "none"))
        if rope == "before" and self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, but RoPE rotates pairs of channels; give an even number")
        self.rope = rope

    def _rotate(
        self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None, positions: Positions | None
    ) -> tuple[Tensor, Tensor]:
        check_positions(positions, q, k)
        if self.rope == "none":
            return q, k
        dtype = torch.promote_types(q.dtype, torch.float32)
        q_rotation, k_rotation = rotations(
            q, k, positions, key_padding_mask, width=self.head_dim, base=self.rope_base, dtype=dtype
        )
        return rotate(q.to(dtype), q_rotation).to(q.dtype), rotate(k.to(dtype), k_rotation).to(k.dtype)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, positions: Positions | None
    ) -> Tensor:
        q, k = self._rotate(q, k, key_padding_mask, positions)
        return softmax_attention(q, k, v, causal=self.causal, key_padding_mask=key_padding_mask)

    def prefill(self, x: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, KeyValueCache]:
        """The whole prompt at once; as :meth:`LinearRoPEAttention.prefill`, with a cache that grows."""
        self._check_step(x, "prefill")
        check_padding_mask(key_padding_mask, *x.shape[:2])
        q, k, v = self._project(*_without_padding(x, None, key_padding_mask))
        q, k = self._rotate(q, k, key_padding_mask, None)
        y = self._merge(softmax_attention(q, k, v, causal=True, key_padding_mask=key_padding_mask))
        return y, KeyValueCache(k, v, key_padding_mask, next_position(x, key_padding_mask))

    def step(self, x: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """One token more: (B, 1, dim) → (B, 1, dim), and the longer cache."""
        self._check_step(x, "step", batch=state.position.shape[0])
        q, k, v = self._project(x, x)
        q, k = self._rotate(q, k, None, state.position.unsqueeze(-1))
        mask = None if state.key_padding_mask is None else F.pad(state.key_padding_mask, (0, 1), value=False)
        k, v = torch.cat((state.k, k), dim=-2), torch.cat((state.v, v), dim=-2)
        y = softmax_attention(q, k, v, causal=False, key_padding_mask=mask)
        return self._merge(y), KeyValueCache(k, v, mask, state.position + 1)

    def extra_repr(self) -> str:
        return f"rope={self.rope!r}, causal={self.causal}"


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, key_padding_mask: Tensor | None) -> Tensor:
    """``F.scaled_dot_product_attention`` with a padding mask; zeros for a query that sees no key."""
    if key_padding_mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    padding = key_padding_mask[:, None, :, None]
    k, v = k.masked_fill(padding, 0), v.masked_fill(padding, 0)
    visible = ~key_padding_mask[:, None, None, :].expand(-1, 1, q.shape[-2], -1)
    if causal:
        visible = visible & torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    sees_none = ~visible.any(-1, keepdim=True)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible | sees_none)
    return y.masked_fill(sees_none, 0)


def _without_padding(x: Tensor, context: Tensor | None, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
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
