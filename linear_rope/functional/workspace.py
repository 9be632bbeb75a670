"""Memory that is used again from block to block and from call to call.

Fresh memory of a few megabytes costs a CPU several times as long as the arithmetic on it: the system hands it out page
by page, and nothing of it is in a cache. Buffers are of the size of one block; those that are larger than what a cache
could hold anyway are not kept.
"""

import math
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# take(name, shape, like) is a buffer for ``out=``, or None for fresh memory. A name is one piece of memory.
Take = Callable[[str, Sequence[int], Tensor], Tensor | None]


def fresh(name: str, shape: Sequence[int], like: Tensor) -> None:
    """No buffer: operations return new tensors, which autograd and compilers can follow."""
    return None


LARGEST_KEPT = 2**24  # elements


class Workspace:
    """Named buffers that grow to the largest shape that was asked for."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """The buffer of that name, uninitialised, of the dtype and device of ``like``."""
        elements = math.prod(shape)
        buffer = self._buffers.get((name, like.dtype))
        if elements > LARGEST_KEPT:
            return torch.empty(*shape, dtype=like.dtype, device=like.device)
        if buffer is None or buffer.numel() < elements:
            # Outlives an inference mode that it may have been made in.
            with torch.inference_mode(False):
                buffer = torch.empty(elements, dtype=like.dtype, device=like.device)
            self._buffers[name, like.dtype] = buffer
        return buffer[:elements].view(*shape)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.workspace = Workspace()


_of_thread = _OfThread()


def workspace(device: torch.device) -> Workspace:
    """This thread's workspace; on a GPU, whose allocator keeps memory itself, a new one."""
    return _of_thread.workspace if device.type == "cpu" else Workspace()
