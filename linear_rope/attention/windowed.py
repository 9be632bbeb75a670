"""An exact window with the FAVOR+ remainder as an attention module."""

from typing import Any, Literal, NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.attention.projected import Carried, Projected, for_heads, of_groups
from linear_rope.attention.settings import Shared, takes_shared
from linear_rope.attention.softmax import mask_of, rotated
from linear_rope.checks import check_at_least
from linear_rope.features.favor import FavorPlus
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.operator import after, attend
from linear_rope.ops.linear.prepare import Rotation, prepare
from linear_rope.ops.linear.rotated_features import for_operator
from linear_rope.ops.linear.state import State
from linear_rope.ops.window.shares import Sequence, Share, fading_over, in_window, together
from linear_rope.positions.decay import Decay
from linear_rope.positions.tokens import check_positions, in_order, last_where
from linear_rope.precision import full_precision
from linear_rope.states import mapped, moved, savable
from linear_rope.tracing import has_tangent


@savable()
class WindowState(NamedTuple):
    """What the attention carries from token to token; its size does not grow.

    Attributes:
        k, v: (B, G, W, D) the last keys, rotated, and values.
        seen: (B, W) bool, which of them there are.
        log_decay: (B, G, W) of their tokens, or None.
        sums: of the keys before them.
        position: (B,) int64, position of the next token.
        carried: by rotation and convolutions.
    """

    k: Tensor
    v: Tensor
    seen: Tensor
    log_decay: Tensor | None
    sums: State
    position: Tensor
    carried: Carried = Carried()


OF_GROUPS = ("k", "v", "log_decay", "sums")


class WindowedFavor(RoPEAttention):
    """Causal attention that is softmax over the last ``window`` tokens and FAVOR+ over those before, with one sum of
    weights; RoPE rotates queries and keys before both.

    Padding is left out: the window counts unpadded tokens. Shorter and longer sequences than the window are different
    programs: ``torch.compile`` makes more than one graph, and ``torch.export`` takes one length.

    ``num_features``, ``redraw_every`` and ``seed`` are those of :class:`FavorPlus`; what else is not told of here is as
    in :class:`LinearRoPEAttention`.

    Args:
        rope: "before" or "none"; after the map nothing but FAVOR+ could be rotated.
        causal: has to be True.
        window: W, tokens of the window, the present one among them.
    """

    state_type = WindowState

    @takes_shared
    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        num_features: int | None = None,
        rope: Literal["before", "none"] = "before",
        causal: bool = True,
        window: int = 32,
        redraw_every: int | None = None,
        seed: int = 0,
        decay: str | Decay = "none",
        **shared: Unpack[Shared],
    ) -> None:
        if not causal:
            raise ValueError("causal is False, but the window looks back; give causal=True")
        check_at_least(1, window=window)
        super().__init__(dim, heads, causal, decay, rope, ("before", "none"), **shared)
        self.window = window
        self.feature_map = FavorPlus(self.head_dim, num_features, redraw_every=redraw_every, seed=seed)
        self._normalise(self.feature_map.initial_gain)
        self._choose_angles(self.head_dim)

    def _sequence(self, projected: Projected, padding: Tensor | None) -> Sequence:
        """What is summed."""
        check_positions(projected.positions, projected.q, projected.k)
        projected = projected.by_query()
        q, k = projected.q, projected.k
        if self.rope == "before":
            q, k = rotated(projected._replace(key_padding_mask=padding), self._turn(self.head_dim))
        dtype = torch.promote_types(q.dtype, torch.float32)
        return Sequence(q.to(dtype), k.to(dtype), projected.v.to(dtype), padding, projected.log_decay)

    def _sum(self, sequence: Sequence, before: State | None = None) -> tuple[Tensor, State]:
        """The output (B, H, N, Dv), and the sums beyond the window of the token that follows the last.

        ``before`` are those of keys before the first, which is then the first of a window.
        """
        q, k, v, padding, log_decay = sequence
        near = in_window(sequence, self.window)
        # Every query as many places earlier as the window is long, where it sees just the keys before its window.
        kept = max(0, q.shape[2] - self.window)
        missing, length = q.shape[2] - kept, max(1, kept)
        earlier, k, v = q[:, :, -length:], k[:, :, :length], v[:, :, :length]
        hidden = (torch.arange(length, device=q.device) >= kept).expand(q.shape[0], -1)
        if padding is not None:
            hidden = hidden | padding[:, :length]
        early_decay = None if log_decay is None else log_decay[:, :, :length]
        call = Call(earlier, k, v, log_decay=early_decay, feature_map=self.feature_map)
        call = after(before, for_operator(prepare(call, hidden, None, Rotation("none"))))
        result = attend(call)
        there = result.denominator > 0
        # By hand the derivative of the total is that of its logarithm's whole scale; in forward mode nothing is.
        own_scale = self.feature_map.queries(earlier if has_tangent(*call) else earlier.detach()).log_scale
        assert own_scale is not None
        scale = (result.scale + own_scale.squeeze(-1)).to(q.dtype)
        log_total = torch.where(there, torch.where(there, result.denominator, 1).log() + scale, -torch.inf)[:, :, :kept]
        if log_decay is not None:
            log_total = log_total + fading_over(log_decay, self.window)
        far = Share(
            F.pad(result.output[:, :, :kept], (0, 0, missing, 0)), F.pad(log_total, (missing, 0), value=-torch.inf)
        )
        return together(near, far), State(result.memory, result.key_sum, result.stabiliser)

    def _attend(self, projected: Projected) -> Tensor:
        # Padding last, so that the tokens of a window are neighbours.
        padding = projected.key_padding_mask
        with full_precision(projected.q.device):
            sequence = self._sequence(projected, padding)
            if padding is None:
                y, _ = self._sum(sequence)
            else:
                order = last_where(padding)
                y = in_order(self._sum(_ordered(sequence, order))[0], order.argsort(dim=-1))
        return y.to(projected.v.dtype)

    def _check_state(self, x: Tensor, state: WindowState) -> None:
        super()._check_state(x, state)
        self._check_same("decay", self.decay, state.log_decay)
        self._check_equal("kv_heads", state.k.shape[1], self.kv_heads)
        self._check_equal("window", state.k.shape[2], self.window)
        self._check_equal("head_dim", state.k.shape[3], self.head_dim)

    def _continue(self, projected: Projected, state: WindowState | None) -> tuple[Tensor, dict[str, Any]]:
        padding, length = mask_of(projected.k, projected.key_padding_mask), projected.q.shape[2]
        with full_precision(projected.q.device):
            sequence = self._sequence(projected, padding)
            if state is not None:
                state = moved(state, None, sequence.q.dtype)
                state = state._replace(**{name: for_heads(getattr(state, name), self.heads) for name in OF_GROUPS})
                padding = torch.cat((~state.seen, padding), dim=1)
                sequence = _joined(Sequence(state.k, state.k, state.v, None, state.log_decay), sequence, padding)
            # Padding first, so that the last tokens are the window.
            order = last_where(~padding)
            sequence = _ordered(sequence, order)
            y, sums = self._sum(sequence, None if state is None else state.sums)
            y = in_order(y, order.argsort(dim=-1))[:, :, -length:].to(projected.v.dtype)
        missing, last = max(0, self.window - sequence.k.shape[2]), slice(-self.window, None)
        k, v = (F.pad(each, (0, 0, missing, 0))[:, :, last] for each in (sequence.k, sequence.v))
        seen = F.pad(~padding.gather(1, order), (missing, 0))[:, last]
        log_decay = None if sequence.log_decay is None else F.pad(sequence.log_decay, (missing, 0))[:, :, last]
        parts = {"k": k, "v": v, "log_decay": log_decay, "sums": sums}
        return y, {name: of_groups(x, self.kv_heads) for name, x in parts.items()} | {"seen": seen}

    def extra_repr(self) -> str:
        return f"rope={self.rope!r}, window={self.window}"


def _ordered(sequence: Sequence, order: Tensor) -> Sequence:
    """The tokens of a sequence with padding in another order (B, N)."""
    ordered: Sequence = mapped(
        sequence, lambda name, x: x.gather(1, order) if name == "padding" else in_order(x, order)
    )
    return ordered


def _joined(one: Sequence, other: Sequence, padding: Tensor) -> Sequence:
    """One sequence after the other, with the padding of both."""
    q, k, v = (torch.cat(pair, dim=2) for pair in ((one.q, other.q), (one.k, other.k), (one.v, other.v)))
    log_decay = None
    if one.log_decay is not None and other.log_decay is not None:
        log_decay = torch.cat((one.log_decay, other.log_decay), dim=2)
    return Sequence(q, k, v, padding, log_decay)
