"""Softmax attention with the same calls as linear attention, to compare with."""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from linear_rope.attention.growing import appended
from linear_rope.attention.multi_head import Carried, Projected, RoPEAttention, next_position, without_padding
from linear_rope.checks import check_sequences
from linear_rope.functional.decay import faded, fading
from linear_rope.positions.alibi import alibi_bias
from linear_rope.positions.decay import Decay
from linear_rope.positions.registry import make_score_positions
from linear_rope.positions.rope_scaling import RopeScaling, check_scaling
from linear_rope.positions.rotary import rotate, rotation_of, rotations
from linear_rope.positions.scores import ScorePositions
from linear_rope.positions.selective import SelectiveRotation
from linear_rope.positions.tokens import Positions, aligned_positions, check_positions, token_positions
from linear_rope.positions.xpos import check_rope, scaled_by_distance
from linear_rope.precision import full_precision
from linear_rope.tracing import has_tangent


class KeyValueCache(NamedTuple):
    """What a causal softmax attention carries from token to token; it grows by one key and value a token.

    Attributes:
        k, v: (B, H, K, D), keys already rotated, and not yet scaled by xPos.
        key_padding_mask: (B, K) bool, True at padding, or None.
        position: (B,) int64, position of the next token.
        faded: (B, H, K) float64, the sum of ln a up to each key, ∞ for keys before a reset; None without decay.
        carried: by rotation and convolutions.
    """

    k: Tensor
    v: Tensor
    key_padding_mask: Tensor | None
    position: Tensor
    faded: Tensor | None = None
    carried: Carried = Carried()


class KeysAndValues(NamedTuple):
    """A context that softmax attention reads.

    Attributes:
        k, v: (B, H, K, D).
        key_padding_mask: (B, K) bool, True at padding, or None.
    """

    k: Tensor
    v: Tensor
    key_padding_mask: Tensor | None


class SoftmaxRoPEAttention(RoPEAttention):
    """Multi-head softmax attention with rotary positions (RoFormer, arXiv 2104.09864, eq. 16), on PyTorch's SDPA.

    Args:
        dim: width of the inputs and outputs.
        heads: number of heads H.
        head_dim: D; default dim / heads; even where something is rotated.
        rope: "before" rotates queries and keys before their product; "xpos" rotates them, and lets their product decay
            with the distance (Sun et al. 2022, arXiv 2212.10554), for ``causal=True``; "none".
        alibi: take off each score the head's slope times the distance (ALiBi, Press et al. 2021, arXiv 2108.12409); for
            ``rope="none"``. It makes a bias of H·N·K numbers, and for B sequences as many each if their positions
            differ.
        causal: a token sees itself and those before it.
        rope_base: θ_i = rope_base^(−2i/D).
        rope_scaling: other angles for sequences longer than those of training, see
            :mod:`linear_rope.positions.rope_scaling`. It is not in the state dict, so weights can be loaded into a
            module with another one.
        bias: of the four projections.
        dropout: on the output, in training, as in :class:`LinearRoPEAttention`.
        decay, rope_angles, local_conv, short_conv, qk_norm: as in :class:`LinearRoPEAttention`. ln a_t summed from a
            key to the query is added to their score; with "gate" that is the Forgetting Transformer (Lin et al. 2025,
            arXiv 2503.02130). It makes a bias of B·H·N·K numbers.
        score_positions: positions as a part of the scores, for ``rope="none"``: "shaw", "transformer-xl", "t5", "tupe",
            "deberta", "huang", another of :data:`linear_rope.positions.POSITIONS`, or a :class:`ScorePositions`. It
            makes B·H·N·K scores; positions are integers, and there is no context.

    Raises:
        ValueError: names the argument, what came, and what would do.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        head_dim: int | None = None,
        rope: Literal["before", "xpos", "none"] = "before",
        alibi: bool = False,
        causal: bool = False,
        rope_base: float = 10000.0,
        rope_scaling: RopeScaling | None = None,
        bias: bool = False,
        dropout: float = 0.0,
        decay: str | Decay = "none",
        rope_angles: str | SelectiveRotation = "fixed",
        local_conv: int = 0,
        short_conv: int = 0,
        qk_norm: bool = False,
        score_positions: str | ScorePositions = "none",
    ) -> None:
        super().__init__(
            dim, heads, head_dim, causal, rope_base, bias, dropout, rope_scaling, decay, local_conv, short_conv
        )
        check_rope(rope, ("before", "xpos", "none"))
        check_scaling(rope_scaling, rotates=rope != "none")
        if rope == "xpos" and not causal:
            raise ValueError(
                'rope is "xpos", whose scores grow with the distance to later keys; give causal=True, or rope="before"'
            )
        if rope != "none" and self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, but RoPE rotates pairs of channels; give an even number")
        if alibi and rope != "none":
            raise ValueError(f'rope is {rope!r}, but alibi tells positions by itself; give rope="none" with alibi=True')
        if alibi and decay != "none":
            raise ValueError(f'decay is {decay!r}, but alibi is a decay too; give decay="alibi" or another, not both')
        if score_positions != "none" and (rope != "none" or alibi):
            raise ValueError(
                f"score_positions is {score_positions!r}, and positions are told by rope={rope!r}, alibi={alibi} too; "
                'give rope="none" and alibi=False with it'
            )
        if rope == "xpos" and rope_angles != "fixed":
            raise ValueError(f'rope_angles is {rope_angles!r}, but xpos is of positions; give rope_angles="fixed"')
        self.rope = rope
        self.alibi = alibi
        self._normalise(qk_norm)
        self._rotate_by(rope_angles, rope, self.head_dim)
        self.score_positions = make_score_positions(
            score_positions, dim=dim, heads=heads, head_dim=self.head_dim, causal=causal
        )

    def _along_one_sequence(self) -> list[str]:
        own = [] if self.score_positions is None else ["score_positions"]
        return super()._along_one_sequence() + own

    def _rotate(
        self, projected: Projected, key_padding_mask: Tensor | None, positions: Positions | None
    ) -> tuple[Tensor, Tensor]:
        q, k = projected.q, projected.k
        check_positions(positions, q, k)
        if self.rope == "none":
            return q, k
        return rotated(projected, key_padding_mask, positions, base=self.rope_base, scaling=self.rope_scaling)

    def _attend(self, projected: Projected, key_padding_mask: Tensor | None, positions: Positions | None) -> Tensor:
        q, k = self._rotate(projected, key_padding_mask, positions)
        bias = self._bias(projected, key_padding_mask, positions)
        at = aligned_positions(q, k, positions, key_padding_mask)
        return self._sum(q, k, projected.v, at, key_padding_mask, bias, causal=self.causal)

    def _weights(self, projected: Projected, key_padding_mask: Tensor | None, positions: Positions | None) -> Tensor:
        if self.score_positions is None:
            return super()._weights(projected, key_padding_mask, positions)
        bias = self._bias(projected, key_padding_mask, positions)
        at = aligned_positions(projected.q, projected.k, positions, key_padding_mask)
        with full_precision(projected.q.device):
            return self._score_weights(projected.q, projected.k, at, key_padding_mask, bias, causal=self.causal)

    def _sum(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        at: tuple[Tensor, Tensor],
        key_padding_mask: Tensor | None,
        bias: Tensor | None,
        *,
        causal: bool,
    ) -> Tensor:
        """The output of the heads, for rotated queries and keys at the positions ``at``."""
        if self.score_positions is None:
            if self.rope == "xpos":
                q, k = scaled_by_distance(q, k, *at)
            return softmax_attention(q, k, v, causal=causal, key_padding_mask=key_padding_mask, bias=bias)
        with full_precision(q.device):
            weights = self._score_weights(q, k, at, key_padding_mask, bias, causal=causal)
            y = weights @ v.to(weights.dtype)
            added = self.score_positions.values(weights, *at)
            return (y if added is None else y + added).to(v.dtype)

    def _score_weights(
        self,
        q: Tensor,
        k: Tensor,
        at: tuple[Tensor, Tensor],
        key_padding_mask: Tensor | None,
        bias: Tensor | None,
        *,
        causal: bool,
    ) -> Tensor:
        """The weights (B, H, N, K), float32 or float64, of scores with :attr:`score_positions`."""
        assert self.score_positions is not None
        for positions in at:
            if positions.is_floating_point():
                raise ValueError(f"positions has dtype {positions.dtype}, and score_positions count; give integers")
        dtype = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(dtype), k.to(dtype)
        scores = q @ k.mT * self.score_positions.scale + self.score_positions(q, k, *at)
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        if causal:
            visible = visible.tril()
        if key_padding_mask is not None:
            visible = visible & ~key_padding_mask[:, None, None, :]
        if bias is not None:
            visible = visible & bias.isfinite()
            scores = scores + bias.to(dtype)
        # The least number and no infinity: a query that sees no key has zeros, and gradients that are finite.
        return scores.masked_fill(~visible, torch.finfo(dtype).min).softmax(-1) * visible

    def _bias(
        self, projected: Projected, key_padding_mask: Tensor | None, positions: Positions | None
    ) -> Tensor | None:
        """What is added to the scores, broadcastable to (B, H, N, K); −∞ at keys that are not seen."""
        q, k = projected.q, projected.k
        if projected.log_decay is not None:
            log_decay = _without_padding(projected.log_decay, key_padding_mask)
            return fading(log_decay, q.dtype, causal=self.causal)
        if not self.alibi:
            return None
        bias = alibi_bias(*aligned_positions(q, k, positions, key_padding_mask), self.heads, dtype=q.dtype)
        if not self.causal:
            return bias
        return bias.masked_fill(torch.ones(bias.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -torch.inf)

    def prefill(self, x: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, KeyValueCache]:
        """The whole prompt at once; as :meth:`LinearRoPEAttention.prefill`, with a cache that grows."""
        self._check_prompt(x, key_padding_mask)
        projected = self.project(*without_padding(x, None, key_padding_mask), key_padding_mask)
        bias = self._bias(projected, key_padding_mask, None)
        q, k = self._rotate(projected, key_padding_mask, None)
        at = aligned_positions(q, k, None, key_padding_mask)
        y = self._sum(q, k, projected.v, at, key_padding_mask, bias, causal=True)
        sums = None
        if projected.log_decay is not None:
            sums, segment = faded(_without_padding(projected.log_decay, key_padding_mask))
            sums = sums.masked_fill(segment < segment[..., -1:], torch.inf)
        cache = KeyValueCache(
            k, projected.v, key_padding_mask, next_position(x, key_padding_mask), sums, projected.carried
        )
        return self._merge(y, projected), cache

    def step(self, x: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """One token more: (B, 1, dim) → (B, 1, dim), and the longer cache."""
        self._check_step(x, state, KeyValueCache)
        self._check_same("decay", self.decay, state.faded)
        projected = self.project(x, x, None, state.carried)
        q, k = self._rotate(projected, None, state.position.unsqueeze(-1))
        mask = None if state.key_padding_mask is None else F.pad(state.key_padding_mask, (0, 1), value=False)
        k, v = appended(state.k, k), appended(state.v, projected.v)
        # Of the keys' positions the new token's own is the last.
        at = aligned_positions(q, k, (state.position.unsqueeze(-1), token_positions(k.shape[-2], mask, x.device)), None)
        bias, sums = None, None
        if projected.log_decay is not None and state.faded is not None:
            new, reset = faded(projected.log_decay)
            sums = torch.cat((state.faded.masked_fill(reset > 0, torch.inf), state.faded[..., -1:] + new), dim=-1)
            bias = (sums[..., -1:] - sums).unsqueeze(-2).to(q.dtype)
        elif self.alibi:
            bias = alibi_bias(*at, self.heads, dtype=q.dtype)
        y = self._sum(q, k, v, at, mask, bias, causal=False)
        cache = KeyValueCache(k, v, mask, state.position + 1, sums, projected.carried)
        return self._merge(y, projected), cache

    def remember(self, context: Tensor, key_padding_mask: Tensor | None = None) -> KeysAndValues:
        """The keys and values of a context."""
        if self.alibi:
            raise ValueError("remember was called, but alibi tells positions; make the attention with alibi=False")
        return KeysAndValues(*self._keys_and_values(context, key_padding_mask), key_padding_mask)

    def recall(self, x: Tensor, memory: KeysAndValues) -> Tensor:
        """(B, N, dim) → (B, N, dim): attend to a context whose keys and values :meth:`remember` has made."""
        check_sequences("x", x, self.dim, self.dtype)
        q = self._queries(x)
        y = softmax_attention(q, memory.k, memory.v, causal=False, key_padding_mask=memory.key_padding_mask)
        return self._merge(y, None)

    def extra_repr(self) -> str:
        return f"rope={self.rope!r}, alibi={self.alibi}, causal={self.causal}"


def rotated(
    projected: Projected,
    key_padding_mask: Tensor | None,
    positions: Positions | None,
    *,
    base: float,
    scaling: RopeScaling | None,
) -> tuple[Tensor, Tensor]:
    """Queries and keys, turned by their angles or else by their positions; the angles are float32 or float64."""
    q, k = projected.q, projected.k
    dtype = torch.promote_types(q.dtype, torch.float32)
    if projected.angles is not None:
        q_rotation = k_rotation = rotation_of(projected.angles).to(dtype)
    else:
        q_rotation, k_rotation = rotations(
            q,
            k,
            positions,
            key_padding_mask,
            width=q.shape[-1],
            base=base,
            dtype=dtype,
            scaling=scaling,
            magnitude=1.0 if scaling is None else scaling.magnitude,
        )
    return rotate(q.to(dtype), q_rotation).to(q.dtype), rotate(k.to(dtype), k_rotation).to(k.dtype)


def _without_padding(log_decay: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Nothing is forgotten at padding."""
    return log_decay if key_padding_mask is None else log_decay.masked_fill(key_padding_mask[:, None], 0)


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, key_padding_mask: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """``F.scaled_dot_product_attention`` with a padding mask; zeros for a query that sees no key.

    Args:
        q: (B, H, N, D).
        k, v: (B, H, K, D).
        causal: query m sees the keys n ≤ m only.
        key_padding_mask: (B, K) bool, True at padding, or None.
        bias: added to the scores, −∞ at later keys where ``causal``; broadcastable to (B, H, N, K), of the dtype of
            ``q``.
    """
    if key_padding_mask is None and bias is not None:
        return _attention(q, k, v, attn_mask=bias)
    if key_padding_mask is None:
        return _attention(q, k, v, is_causal=causal)
    padding = key_padding_mask[:, None, :, None]
    k, v = k.masked_fill(padding, 0), v.masked_fill(padding, 0)
    visible = ~key_padding_mask[:, None, None, :].expand(-1, 1, q.shape[-2], -1)
    if causal:
        visible = visible & torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    sees_none = ~visible.any(-1, keepdim=True)
    visible = visible | sees_none
    mask = visible if bias is None else bias.masked_fill(~visible, -torch.inf)
    y = _attention(q, k, v, attn_mask=mask)
    return y.masked_fill(sees_none, 0)


def _attention(q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """``F.scaled_dot_product_attention``; its fused kernels have no forward-mode derivative."""
    if not has_tangent(q, k, v, attn_mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal)
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal)
