"""Softmax attention with the same calls as linear attention, to compare with."""

from typing import Any, Literal, NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from linear_rope.attention.growing import appended
from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.attention.projected import Carried, Projected, for_heads
from linear_rope.attention.settings import DEFAULTS, Shared, takes_shared
from linear_rope.ops.decay import faded, fading
from linear_rope.positions.alibi import alibi_bias
from linear_rope.positions.decay import Decay
from linear_rope.positions.pope import polar, scaled_query, with_phase
from linear_rope.positions.registry import make_score_positions
from linear_rope.positions.rotary import Turn, rotate, rotations
from linear_rope.positions.scores import ScorePositions
from linear_rope.positions.tokens import aligned_positions, check_positions, in_order, last_where, token_positions
from linear_rope.positions.xpos import scaled_by_distance
from linear_rope.precision import full_precision
from linear_rope.small_calls import cosine_and_sine
from linear_rope.states import savable
from linear_rope.tracing import has_tangent, is_watched


@savable()
class KeyValueCache(NamedTuple):
    """What a causal softmax attention carries from token to token; it grows by one key and value a token, or
    holds those of a window, each sequence's last ones.

    Attributes:
        k, v: (B, G, K, D), keys already rotated, and not yet scaled by xPos; of PoPE (B, G, K, 2·D), at their angles.
        key_padding_mask: (B, K) bool, True at padding, or None.
        position: (B,) int64, position of the next token.
        faded: (B, G, K) float64, the sum of ln a up to each key, ∞ for keys before a reset; None without decay.
        carried: by rotation and convolutions.
    """

    k: Tensor
    v: Tensor
    key_padding_mask: Tensor | None
    position: Tensor
    faded: Tensor | None = None
    carried: Carried = Carried()


@savable()
class KeysAndValues(NamedTuple):
    """A context that softmax attention reads.

    Attributes:
        k, v: (B, G, K, D).
        key_padding_mask: (B, K) bool, True at padding, or None.
    """

    k: Tensor
    v: Tensor
    key_padding_mask: Tensor | None


class SoftmaxRoPEAttention(RoPEAttention):
    """Multi-head softmax attention with rotary positions (RoFormer, arXiv 2104.09864, eq. 16), on PyTorch's SDPA.

    What is not told of here is as in :class:`LinearRoPEAttention`; θ_i is rope_base^(−2i/D), with D even.

    Args:
        rope: "before" rotates queries and keys before their product; "xpos" rotates them, and lets their product decay
            with the distance (Sun et al. 2022, arXiv 2212.10554), for ``causal=True``; "pope" gives each channel a
            length and an angle of its own, see :mod:`linear_rope.positions.pope`; "none".
        rope_phase: "learned" adds a phase of each head and channel to the angles of PoPE's scores; "none".
        alibi: take off each score the head's slope times the distance (ALiBi, Press et al. 2021, arXiv 2108.12409); for
            ``rope="none"``. It makes a bias of H·N·K numbers, and for B sequences as many each if their positions
            differ.
        decay: as there. ln a_t summed from a key to the query is added to their score; with "gate" that is the
            Forgetting Transformer (Lin et al. 2025, arXiv 2503.02130). It makes a bias of B·H·N·K numbers.
        score_positions: positions as a part of the scores, for ``rope="none"``: "shaw", "transformer-xl", "t5", "tupe",
            "deberta", "huang", another of :data:`linear_rope.positions.POSITIONS`, or a :class:`ScorePositions`. It
            makes B·H·N·K scores; positions are integers, and there is no context.
        window: W, a token sees itself and the W − 1 unpadded ones before it, for ``causal=True`` (Beltagy et al. 2020,
            arXiv 2004.05150, section 3.1); the cache holds W keys. A whole sequence still takes time and a mask of N·K.
    """

    state_type = KeyValueCache

    @takes_shared
    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        rope: Literal["before", "xpos", "pope", "none"] = "before",
        alibi: bool = False,
        causal: bool = False,
        decay: str | Decay = "none",
        score_positions: str | ScorePositions = "none",
        window: int | None = None,
        rope_phase: Literal["none", "learned"] = "none",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(dim, heads, causal, decay, rope, ("before", "xpos", "pope", "none"), **shared)
        if rope == "xpos" and not causal:
            raise ValueError(
                'rope is "xpos", whose scores grow with the distance to later keys; give causal=True, or rope="before"'
            )
        if alibi and rope != "none":
            raise ValueError(f'rope is {rope!r}, but alibi tells positions by itself; give rope="none" with alibi=True')
        if alibi and decay != "none":
            raise ValueError(f'decay is {decay!r}, but alibi is a decay too; give decay="alibi" or another, not both')
        if score_positions != "none" and (rope != "none" or alibi):
            raise ValueError(
                f"score_positions is {score_positions!r}, and positions are told by rope={rope!r}, alibi={alibi} too; "
                'give rope="none" and alibi=False with it'
            )
        if window is not None and (not isinstance(window, int) or window < 1 or not causal):
            raise ValueError(
                f"window is {window!r} and causal is {causal}; give a whole number of 1 or more, with causal=True, or "
                "window=None for all that came before"
            )
        for name in ("rope_angles", "rope_fraction"):
            if rope == "xpos" and self._shared[name] != DEFAULTS[name]:
                raise ValueError(
                    f"{name} is {self._shared[name]!r}, but xpos turns every pair, by its position; give "
                    f"{name}={DEFAULTS[name]!r}"
                )
        self.alibi = alibi
        self.window = window
        self._normalise()
        self._choose_angles(self.head_dim * (2 if rope == "pope" else 1))
        self._learn_phase(rope_phase, self.head_dim, "pope")
        self.score_positions = make_score_positions(
            score_positions, dim=dim, heads=heads, head_dim=self.head_dim, causal=causal
        )

    def _along_one_sequence(self) -> list[str]:
        own = [] if self.score_positions is None else ["score_positions"]
        return super()._along_one_sequence() + own

    def _rotate(self, projected: Projected) -> tuple[Tensor, Tensor]:
        q, k = projected.q, projected.k
        check_positions(projected.positions, q, k)
        if self.rope == "none":
            return q, k
        is_polar = self.rope == "pope"
        turn = self._turn(2 * self.head_dim if is_polar else self.head_dim)
        return rotated(projected, turn, is_polar=is_polar, phase=self.phase)

    def _attend(self, projected: Projected) -> Tensor:
        q, k = self._rotate(projected)
        at = aligned_positions(q, k, projected.positions, projected.key_padding_mask)
        bias, _ = self._bias(projected, at, projected.key_padding_mask)
        return self._sum(q, k, projected.v, at, projected.key_padding_mask, bias)

    def weights(self, projected: Projected) -> Tensor:
        with full_precision(projected.q.device):
            return self._softmax(self.scores(projected), projected.key_padding_mask)

    def scores(self, projected: Projected) -> Tensor:
        """What softmax is of, (B, H, N, K), float32 or float64; −∞ at keys that a bias hides."""
        q, k = self._rotate(projected)
        at = aligned_positions(q, k, projected.positions, projected.key_padding_mask)
        if self.rope == "xpos":
            q, k = scaled_by_distance(q, k, *at)
        return self._scores(q, k, at, self._bias(projected, at, projected.key_padding_mask)[0])

    def _sum(
        self, q: Tensor, k: Tensor, v: Tensor, at: tuple[Tensor, Tensor], mask: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """The output of the heads, for rotated queries and keys at the positions ``at``."""
        if self.score_positions is None:
            if self.rope == "xpos":
                q, k = scaled_by_distance(q, k, *at)
            return softmax_attention(q, k, v, causal=self.causal, key_padding_mask=mask, bias=bias)
        with full_precision(q.device):
            weights = self._softmax(self._scores(q, k, at, bias), mask)
            y = weights @ for_heads(v, self.heads).to(weights.dtype)
            added = self.score_positions.values(weights, *at)
            return (y if added is None else y + added).to(v.dtype)

    def _scores(self, q: Tensor, k: Tensor, at: tuple[Tensor, Tensor], bias: Tensor | None) -> Tensor:
        dtype = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(dtype), for_heads(k, self.heads).to(dtype)
        if self.score_positions is None:
            scores = q @ k.mT * q.shape[-1] ** -0.5
        else:
            for positions in at:
                if positions.is_floating_point():
                    raise ValueError(f"positions has dtype {positions.dtype}, and score_positions count; give integers")
            scores = q @ k.mT * self.score_positions.scale + self.score_positions(q, k, *at)
        return scores if bias is None else scores + bias.to(dtype)

    def _softmax(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """The weights of the keys that each query sees."""
        visible = ~scores.isneginf()
        if self.causal:
            visible = visible & ~_later(scores.shape[-2], scores.shape[-1], scores.device)
        if mask is not None:
            visible = visible & ~mask[:, None, None, :]
        # The least number and no infinity: a query that sees no key has zeros, and gradients that are finite.
        return scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1) * visible

    def _bias(
        self, projected: Projected, at: tuple[Tensor, Tensor], mask: Tensor | None, before: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """What is added to the scores, and the sum of ln a up to each key, after those ``before``, as in the cache.

        ``mask`` is the padding (B, K) of all keys. The first is broadcastable to (B, H, N, K), and −∞ at keys that are
        not seen. Without either, None.
        """
        q, log_decay = projected.q, projected.log_decay
        bias = sums = None
        if log_decay is not None:
            if self.decay is None:
                log_decay = log_decay[:, :1]  # the boundaries of segments are those of all heads
            bias = fading(log_decay, q.dtype, causal=self.causal)
            sums, segment = faded(log_decay)
            last = sums.masked_fill(segment < segment[..., -1:], torch.inf)
            if before is not None:
                between = (sums + before[..., -1:]).unsqueeze(-1) - before.unsqueeze(-2)
                of_old = between.to(q.dtype).masked_fill(segment.unsqueeze(-1) > 0, -torch.inf)
                bias = torch.cat((of_old, bias), dim=-1)
                last = torch.cat(
                    (before.masked_fill(segment[..., -1:] > 0, torch.inf), last + before[..., -1:]), dim=-1
                )
            sums = last
            bias = bias if bias.shape[1] == 1 else for_heads(bias, self.heads)
        if self.alibi:
            slopes = alibi_bias(*at, self.heads, dtype=q.dtype)
            if self.causal:
                slopes = slopes.masked_fill(_later(slopes.shape[-2], slopes.shape[-1], q.device), -torch.inf)
            bias = slopes if bias is None else bias + slopes
        keys = at[1].shape[-1]
        # The same at every length where a graph is made, which would keep the answer for the traced one.
        if self.window is not None and (torch.compiler.is_compiling() or keys > self.window):
            unseen = _unseen(q.shape[2], keys, self.window, mask, q.device)
            bias = torch.zeros((), dtype=q.dtype, device=q.device) if bias is None else bias
            bias = bias.masked_fill(unseen, -torch.inf)
        return bias, sums

    def _check_state(self, x: Tensor, state: KeyValueCache) -> None:
        super()._check_state(x, state)
        self._check_same("decay", self.decay, state.faded)
        self._check_equal("kv_heads", state.k.shape[1], self.kv_heads)
        self._check_equal("rope or head_dim", state.k.shape[-1], self.head_dim * (2 if self.rope == "pope" else 1))
        keys, is_seen = state.k.shape[2], state.position.device.type == "cpu" and not is_watched()
        if is_seen and (self.window is None or self.window > keys) and bool((state.position > keys).any()):
            self._check_equal("window", keys, self.window)

    def _continue(self, projected: Projected, state: KeyValueCache | None) -> tuple[Tensor, dict[str, Any]]:
        q, k = self._rotate(projected)
        v, mask, at, before = projected.v, projected.key_padding_mask, None, None
        if state is not None and isinstance(projected.positions, Tensor):
            if mask is not None or state.key_padding_mask is not None:
                mask = torch.cat((mask_of(state.k, state.key_padding_mask), mask_of(k, mask)), dim=-1)
            k, v = appended(state.k.to(k.dtype), k), appended(state.v.to(v.dtype), v)
            before = state.faded
            at = projected.positions, self._key_positions(state, k, mask)
        at = aligned_positions(q, k, at, mask)
        bias, sums = self._bias(projected, at, mask, before)
        y = self._sum(q, k, v, at, mask, bias)
        return y, self._kept(k, v, mask, sums)

    def _key_positions(self, state: KeyValueCache, k: Tensor, mask: Tensor | None) -> Tensor:
        """(K,) or (B, K), of all keys; those of a window's cache do not begin at 0."""
        counted = token_positions(k.shape[2], mask, k.device)
        if self.window is None:
            return counted
        there = (~mask_of(state.k, state.key_padding_mask)).sum(-1)
        return counted + (state.position - there).unsqueeze(-1)

    def _kept(self, k: Tensor, v: Tensor, mask: Tensor | None, sums: Tensor | None) -> dict[str, Any]:
        """What goes into the cache; of a window the last keys of each sequence."""
        if self.window is not None and (torch.compiler.is_compiling() or k.shape[2] > self.window):
            keys = k.shape[2]
            last = torch.arange(torch.sym_max(keys - self.window, 0), keys, device=k.device)
            order = last.expand(k.shape[0], -1) if mask is None else last_where(~mask)[:, last]
            k, v = in_order(k, order), in_order(v, order)
            mask = None if mask is None else mask.gather(1, order)
            sums = None if sums is None else in_order(sums, order)
        return {"k": k, "v": v, "key_padding_mask": mask, "faded": sums}

    def remember(self, context: Tensor, key_padding_mask: Tensor | None = None) -> KeysAndValues:
        """The keys and values of a context."""
        if self.alibi:
            raise ValueError("remember was called, but alibi tells positions; make the attention with alibi=False")
        return KeysAndValues(*self._keys_and_values(context, key_padding_mask), key_padding_mask)

    def _read(self, projected: Projected, memory: KeysAndValues) -> Tensor:
        k, v, padding = memory
        return softmax_attention(projected.q, k, v, causal=False, key_padding_mask=padding)

    def extra_repr(self) -> str:
        window = "" if self.window is None else f", window={self.window}"
        return f"rope={self.rope!r}, alibi={self.alibi}, causal={self.causal}{window}"


def rotated(
    projected: Projected, turn: Turn, *, is_polar: bool = False, phase: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Queries and keys, turned by their angles or else by their positions; the angles are float32 or float64.

    Those of PoPE, ``is_polar``, become twice as wide; ``phase`` is that of :func:`with_phase`.
    """
    q, k = projected.q, projected.k
    dtype = torch.promote_types(q.dtype, torch.float32)
    if projected.angles is not None:
        k_rotation = cosine_and_sine(projected.angles).to(dtype)
        q_rotation = k_rotation if k_rotation.shape[1] == 1 else for_heads(k_rotation, q.shape[1])
    else:
        magnitude = 1.0 if turn.scaling is None else turn.scaling.magnitude
        at = projected.positions, projected.key_padding_mask
        q_rotation, k_rotation = rotations(q, k, *at, turn, dtype, magnitude)
    k_rotation = with_phase(k_rotation, phase)
    wide_q, wide_k = q.to(dtype), k.to(dtype)
    if is_polar:
        wide_q, wide_k = scaled_query(polar(wide_q, q_rotation)), polar(wide_k, k_rotation)
    else:
        wide_q, wide_k = rotate(wide_q, q_rotation), rotate(wide_k, k_rotation)
    return wide_q.to(q.dtype), wide_k.to(k.dtype)


def _later(queries: int, keys: int, device: torch.device) -> Tensor:
    """(N, K) bool, the keys after each query's own; the last query's is the last."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu(keys - queries + 1)


def _unseen(queries: int, keys: int, window: int, mask: Tensor | None, device: torch.device) -> Tensor:
    """Keys after each query's own, or ``window`` or more of those that are no padding before it: (N, K) or (B, 1, N, K)
    bool."""
    later = _later(queries, keys, device)
    if mask is None:
        return later | torch.ones_like(later).tril(keys - queries - window)
    counted = (~mask).cumsum(-1)
    return later | (counted[:, None, -queries:, None] - counted[:, None, None] >= window)


def mask_of(k: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """(B, K) bool, True at padding."""
    if key_padding_mask is not None:
        return key_padding_mask
    return torch.zeros(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, key_padding_mask: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """``F.scaled_dot_product_attention`` with a padding mask (B, K); zeros for a query that sees no key.

    A causal query sees its own key, of which the last query has the last one, and those before it. ``bias`` is added to
    the scores, −∞ at later keys where ``causal``; broadcastable to (B, H, N, K), of the dtype of ``q``.
    """
    if key_padding_mask is None and (bias is not None or not causal):
        return _attention(q, k, v, attn_mask=bias)
    queries, keys = q.shape[-2], k.shape[-2]
    if key_padding_mask is None and queries == keys:
        return _attention(q, k, v, is_causal=True)
    if key_padding_mask is None and queries == 1:
        return _attention(q, k, v)
    visible = ~_later(queries, keys, q.device) if causal else torch.ones_like(q[:1, :1, :, :1], dtype=torch.bool)
    if key_padding_mask is not None:
        padding = key_padding_mask[:, None, :, None]
        k, v = k.masked_fill(padding, 0), v.masked_fill(padding, 0)
        visible = visible & ~padding.mT
    sees_none = ~visible.any(-1, keepdim=True)
    visible = visible | sees_none
    mask = visible if bias is None else bias.masked_fill(~visible, -torch.inf)
    y = _attention(q, k, v, attn_mask=mask)
    return y.masked_fill(sees_none, 0)


def _attention(q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """``F.scaled_dot_product_attention``; its fused kernels have no forward-mode derivative."""
    options: dict[str, Any] = {"attn_mask": attn_mask, "is_causal": is_causal, "enable_gqa": q.shape[1] != k.shape[1]}
    if not has_tangent(q, k, v, attn_mask):
        return F.scaled_dot_product_attention(q, k, v, **options)
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, **options)
