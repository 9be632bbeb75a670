"""Segments of packed sequences as rows of a batch, for what sums over each of them."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from linear_rope.ops.linear.rotated_features import Inputs


def per_segment(inputs: Inputs, segments: Tensor, attend: Callable[[Inputs], Tensor]) -> Tensor:
    """What ``attend`` gives for each segment by itself, (B, H, N, Dv).

    Rows of one call are filled up to the longest, which is less than twice as long as the shortest.
    """
    batch, length = inputs.q.shape[0], inputs.q.shape[2]
    number = segments + torch.cat((segments.new_zeros(1), segments[:-1, -1] + 1)).cumsum(0).unsqueeze(-1)
    counts = number.flatten().bincount()
    ends = counts.cumsum(0)
    parts, places = [], []
    sizes = torch.frexp(counts.double()).exponent
    for size in sizes.unique():
        of_size = sizes == size
        count = counts[of_size].unsqueeze(-1)
        within = torch.arange(int(count.max()), device=segments.device)
        there = within < count
        index = ((ends[of_size].unsqueeze(-1) - count) + within).clamp(max=batch * length - 1)
        y = attend(_rows(inputs, index, there))
        parts.append(y.transpose(1, 2)[there])
        places.append(index[there])
    return torch.cat(parts)[torch.cat(places).argsort()].unflatten(0, (batch, length)).transpose(1, 2)


def _rows(inputs: Inputs, index: Tensor, there: Tensor) -> Inputs:
    """The tokens ``index`` (S, L) of all sequences, padding where ``there`` is False."""
    batch, length = inputs.q.shape[0], inputs.q.shape[2]

    def taken(x: Tensor) -> Tensor:
        """(B, H, N, ...) → (S, H, L, ...)."""
        return x.transpose(1, 2).flatten(0, 1)[index].transpose(1, 2)

    def rotation(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        x = x[None, None] if x.dim() == 3 else x
        return taken(x.expand(batch, -1, length, -1, -1))

    padding = ~there[:, None, :, None]
    if inputs.padding is not None:
        padding = padding | taken(inputs.padding)
    return replace(
        inputs,
        q=taken(inputs.q),
        k=taken(inputs.k).masked_fill(padding, 0),
        v=taken(inputs.v).masked_fill(padding, 0),
        padding=padding,
        q_rotation=rotation(inputs.q_rotation),
        k_rotation=rotation(inputs.k_rotation),
    )
