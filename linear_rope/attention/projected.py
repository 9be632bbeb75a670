"""What an attention attends with, once its inputs are projected, and what is carried from token to token."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from linear_rope.attention.head_norm import HeadNorm
from linear_rope.positions.segments import positions_within
from linear_rope.positions.tokens import Positions, token_positions
from linear_rope.states import mapped, savable


@savable("linear_rope.attention.multi_head.Carried")
class Carried(NamedTuple):
    """What rotation and convolutions carry from token to token; None where there is none.

    Attributes:
        phase: (B, G, width / 2) float64, Φ of :mod:`linear_rope.positions.selective`, for G heads of keys and values.
        speeds: (B, 3, G·width/2), the last inputs of its convolution.
        short: (B, short_conv − 1, H·D + 2·G·D), the last queries, keys and values.
        local: (B, local_conv − 1, G·D), the last values.
    """

    phase: Tensor | None = None
    speeds: Tensor | None = None
    short: Tensor | None = None
    local: Tensor | None = None


class Projected(NamedTuple):
    """What a kernel attends with.

    Attributes:
        q: (B, H, N, D).
        k, v: (B, G, K, D), each of the G heads for H / G query heads, one behind the other.
        key_padding_mask: (B, K) bool, True at padding; or None.
        positions: those given, or that had to be counted here; or None.
        log_decay: (B, G, N), or None.
        angles: (B, G, N, width / 2), or None for those of the positions.
        local: (B, N, H·D), added to the output of the heads; or None.
        carried: after the last token.
        segments: (B, N) int64, what crosses no boundary; or None.
        padding: (B, N) bool, True at queries that are padding, or None.
        rate: (B, G, N), how much of what stands under a key is replaced; of the delta rule alone.
        gate: (B, N, H·D), what the output of the heads is multiplied by; or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    key_padding_mask: Tensor | None = None
    positions: Positions | None = None
    log_decay: Tensor | None = None
    angles: Tensor | None = None
    local: Tensor | None = None
    carried: Carried = Carried()
    segments: Tensor | None = None
    padding: Tensor | None = None
    rate: Tensor | None = None
    gate: Tensor | None = None

    def by_query(self) -> "Projected":
        """With what is of the G heads of keys and values for each of the H query heads."""
        heads = self.q.shape[1]
        if self.k.shape[1] == heads:
            return self
        return self._replace(**{name: for_heads(getattr(self, name), heads) for name in OF_KEYS})


OF_KEYS = ("k", "v", "log_decay", "angles", "rate")
"""fields of :class:`Projected` that are of the heads of keys and values"""


def for_heads(x: Any, heads: int) -> Any:
    """(B, G, ...) → (B, H, ...), each for H / G neighbouring heads; a state's tensors likewise, and None for None."""
    if not isinstance(x, Tensor):
        return mapped(x, lambda _, part: for_heads(part, heads))
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def of_groups(x: Any, groups: int) -> Any:
    """Back from what :func:`for_heads` gives, where all of a group are alike."""
    if not isinstance(x, Tensor):
        return mapped(x, lambda _, part: of_groups(part, groups))
    return x if x.shape[1] == groups else x[:, :: x.shape[1] // groups].contiguous()


def default_positions(
    x: Tensor, context: Tensor | None, key_padding_mask: Tensor | None, segments: Tensor | None
) -> Positions | None:
    """Those that a kernel does not count itself: of segments, and of queries of whom a context's mask says nothing."""
    if segments is not None:
        return positions_within(segments, key_padding_mask)
    if context is None or key_padding_mask is None:
        return None
    k_positions = token_positions(context.shape[1], key_padding_mask, x.device)
    return token_positions(x.shape[1], None, x.device), k_positions


def following(x: Tensor, key_padding_mask: Tensor | None, state: Any) -> tuple[Tensor | None, Tensor]:
    """The positions (B, N) of tokens after ``state``, None without one, and (B,) that of the next token."""
    if state is None:
        if key_padding_mask is None:
            return None, torch.full((x.shape[0],), x.shape[1], device=x.device)
        return None, (~key_padding_mask).sum(-1)
    first = state.position.unsqueeze(-1)
    if key_padding_mask is None:
        at = first if x.shape[1] == 1 else first + token_positions(x.shape[1], None, x.device)
        return at, state.position + x.shape[1]
    counted = token_positions(x.shape[1], key_padding_mask, x.device)
    return first + counted, state.position + (~key_padding_mask).sum(-1)


def without_padding(x: Tensor, context: Tensor | None, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """``x`` and what it attends to, with zeros at padding.

    Before the projections, because zero times infinity is not zero in the gradients of their weights.
    """
    source = unpadded(x if context is None else context, key_padding_mask)
    return (source if context is None else x), source


def zero_at_padding(rows: Tensor, padding: Tensor | None) -> Tensor:
    """Outputs or weights (B, H, N, ·), zero for queries that are padding (B, N): what these see is not defined."""
    return rows if padding is None else rows.masked_fill(padding[:, None, :, None], 0)


def normed(x: Tensor, norm: HeadNorm | None) -> Tensor:
    """``x``, by the norm if there is one."""
    found: Tensor = x if norm is None else norm(x)
    return found


def unpadded(x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """``x`` (B, N, C) with zeros at padding, where a bias may have put something."""
    return x if key_padding_mask is None else x.masked_fill(key_padding_mask.unsqueeze(-1), 0)
