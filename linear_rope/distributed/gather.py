"""Tensors of every process, in one message of each."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def all_gathered(own: Sequence[Tensor | None], group: dist.ProcessGroup | None) -> list[list[Tensor | None]]:
    """What every process of the group gave, in rank order; shapes and dtypes are the same in all of them."""
    given = [x for x in own if x is not None]
    # As bytes, because scales can have another dtype than what they scale.
    message = torch.cat([x.detach().contiguous().flatten().view(torch.uint8) for x in given])
    messages = [torch.empty_like(message) for _ in range(dist.get_world_size(group))]
    dist.all_gather(messages, message, group=group)
    everyones = []
    for message in messages:
        pieces = iter(message.split([x.numel() * x.element_size() for x in given]))
        # A copy of each, because a piece can begin where a number of its dtype may not.
        everyones.append([None if x is None else next(pieces).clone().view(x.dtype).view(x.shape) for x in own])
    return everyones


def check_group(group: dist.ProcessGroup | None) -> None:
    """Raises ValueError unless this process can talk to others in ``group``; None is the default group."""
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(
            f"group is {group!r}, but no processes are connected; call torch.distributed.init_process_group first, and "
            "give its group, or None for all processes"
        )
    if dist.get_rank(group) < 0:
        raise ValueError(
            f"group is {group!r}, which process {dist.get_rank()} does not belong to; give a group that it is in"
        )
