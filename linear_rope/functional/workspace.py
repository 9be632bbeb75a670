"""Memory that is used again from block to block and from call to call.

Fresh memory of a few megabytes costs a CPU several times as long as the arithmetic on it: the system hands it out page
by page, and nothing of it is in a cache. Buffers are of the size of one block.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from linear_rope.features.base import Take

LARGEST_KEPT = 2**24  # elements of all buffers; more than a cache could hold anyway


class Workspace:
    """Named buffers that grow to the largest shape that was asked for."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """The buffer of that name, uninitialised, of the dtype and device of ``like``."""
        elements = math.prod(shape)
        buffer = self._buffers.get((name, like.dtype))
        if buffer is None or buffer.numel() < elements:
            # Outlives an inference mode that it may have been made in.
            with torch.inference_mode(False):
                buffer = torch.empty(elements, dtype=like.dtype, device=like.device)
            self._buffers[name, like.dtype] = buffer
        return buffer[:elements].view(*shape)

    def elements(self) -> int:
        """Of all buffers."""
        return sum(buffer.numel() for buffer in self._buffers.values())


_free: list[Workspace] = []


@contextmanager
def borrowed(device: torch.device) -> Iterator[Take]:
    """A workspace for one call, and for no other at the same time. One is kept for the next call."""
    # list.pop and list.append are atomic. A GPU's allocator keeps memory itself.
    try:
        own = _free.pop() if device.type == "cpu" else Workspace()
    except IndexError:
        own = Workspace()
    yield own.take
    if device.type == "cpu" and not _free and own.elements() <= LARGEST_KEPT:
        _free.append(own)
