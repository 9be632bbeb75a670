"""Packed sequences: several of them, one behind the other, in one row of a batch.

Nothing crosses from one segment to the next, and positions begin anew in each. What carries the past along is cut by a
decay of zero at a segment's first token.
"""

import torch
from torch import Tensor

from linear_rope.tracing import is_watched


def segments_of(
    segment_ids: Tensor | None,
    cu_seqlens: Tensor | None,
    tokens: Tensor,
    key_padding_mask: Tensor | None = None,
    context: Tensor | None = None,
) -> Tensor | None:
    """The segment of every token, counted from 0: (B, N) int64; None where neither argument is given.

    Args:
        segment_ids, cu_seqlens: see :func:`linear_rope.linear_attention`. A segment does not return; ids at padding are
            not read: it belongs to the segment before it.
        tokens: (B, N, ...), what they divide.
        context: None, for what reads a context is not packed.

    Raises:
        ValueError: both, a context, another shape, dtype or device, boundaries that are none, or a segment that
            returns. Values are checked on a CPU, where nothing traces the call: a GPU would have to be waited for.
    """
    if segment_ids is None and cu_seqlens is None:
        return None
    if segment_ids is not None and cu_seqlens is not None:
        raise ValueError("segment_ids and cu_seqlens were both given; give one of them")
    if context is not None:
        raise ValueError("segments were given with a context, whose tokens are in none; give each sequence its own row")
    shape = tokens.shape[0], tokens.shape[1]
    if segment_ids is None:
        assert cu_seqlens is not None
        _check_integers("cu_seqlens", cu_seqlens, tokens.device)
        segment_ids = _from_boundaries(cu_seqlens, shape)
    _check_integers("segment_ids", segment_ids, tokens.device)
    if segment_ids.shape != shape:
        raise ValueError(f"segment_ids has shape {tuple(segment_ids.shape)}; give {shape}, one of each token")
    ids = segment_ids.long()
    if key_padding_mask is not None:
        ids = ids.gather(1, last_token(key_padding_mask))
    begins = beginnings(ids)
    if ids.device.type == "cpu" and not is_watched():
        ordered = ids.sort(dim=-1).values
        if bool((begins.sum(-1) > (ordered[:, 1:] != ordered[:, :-1]).sum(-1)).any()):
            raise ValueError("segment_ids come back after another one; give each segment an id of its own")
    return begins.cumsum(-1)


def _from_boundaries(cu_seqlens: Tensor, shape: tuple[int, int]) -> Tensor:
    batch, length = shape
    if batch != 1:
        raise ValueError(f"cu_seqlens was given with {batch} sequences; give one, (1, length, ...), or segment_ids")
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2:
        raise ValueError(f"cu_seqlens has shape {tuple(cu_seqlens.shape)}; give (segments + 1,), from 0 to {length}")
    if cu_seqlens.device.type == "cpu" and not is_watched():
        ends = cu_seqlens.tolist()
        if ends[0] != 0 or ends[-1] != length or ends != sorted(ends):
            raise ValueError(f"cu_seqlens is {ends}; give boundaries in order, from 0 to {length}")
    at = torch.arange(length, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    return torch.searchsorted(cu_seqlens[1:].contiguous(), at, right=True).unsqueeze(0)


def _check_integers(name: str, x: Tensor, device: torch.device) -> None:
    if not isinstance(x, Tensor) or x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        came = f"dtype {x.dtype}" if isinstance(x, Tensor) else f"type {type(x).__name__}"
        raise ValueError(f"{name} has {came}; give a tensor of integers")
    if x.device != device:
        raise ValueError(f"{name} is on {x.device}, and the tokens on {device}; give both on one device")


def last_token(key_padding_mask: Tensor) -> Tensor:
    """Of every place, the last token up to it that is no padding, or else the first one after it: (B, N) int64."""
    at = torch.arange(key_padding_mask.shape[1], device=key_padding_mask.device).expand_as(key_padding_mask)
    last = at.masked_fill(key_padding_mask, -1).cummax(-1).values
    first = key_padding_mask.to(torch.int8).argmin(-1, keepdim=True)
    return torch.where(last < 0, first, last)


def beginnings(segments: Tensor) -> Tensor:
    """True at the first token of each segment but the first: (B, N) bool."""
    return (segments != segments.roll(1, -1)) & (torch.arange(segments.shape[1], device=segments.device) > 0)


def positions_within(segments: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """The count of unpadded tokens of its segment before each token: (B, N) int64."""
    counted = torch.ones_like(segments) if key_padding_mask is None else (~key_padding_mask).long()
    before = counted.cumsum(-1) - 1
    return (before - before.masked_fill(~beginnings(segments), 0).cummax(-1).values).clamp(min=0)


def cut(log_decay: Tensor | None, segments: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """ln a_t (B, H, N), of pairs (B, H, N, P), or no decay at all, with −∞ at the first token of each segment but the
    first.
    """
    begins = beginnings(segments)[:, None]
    if log_decay is None:
        log_decay = torch.zeros(begins.shape, dtype=dtype, device=begins.device)
    begins = begins.view(*begins.shape, *[1] * (log_decay.dim() - 3))
    return log_decay.masked_fill(begins, -torch.inf).expand(-1, heads, *[-1] * (log_decay.dim() - 2))
