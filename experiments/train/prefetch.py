"""Batches for a GPU: while it computes one step, a thread draws the next batch into memory that it copies from."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

import torch
from torch import Tensor

Batch = tuple[Tensor, ...]


class Batches(AbstractContextManager["Batches"]):
    """The batches of steps, each a pure function of its step, so that it matters to nobody when one is drawn.

    On a CPU there is nothing to overlap with, and each is drawn when it is asked for.
    """

    def __init__(
        self,
        draw: Callable[[int], Batch],
        device: torch.device,
        ahead: bool | None = None,
        finish: Callable[[Batch], Batch] = lambda drawn: drawn,
    ) -> None:
        """``ahead``: whether a thread draws the next one; None does so unless the device is a CPU.

        ``finish`` makes the batch of what was drawn.
        """
        self._draw, self._pin, self._finish = draw, device.type == "cuda", finish
        self._thread = ThreadPoolExecutor(1) if (device.type != "cpu" if ahead is None else ahead) else None
        self._next: tuple[int, Future[Batch]] | None = None

    def at(self, step: int) -> Batch:
        """The batch of a step, as ``finish`` leaves it; what was drawn is on the CPU, in pinned memory for CUDA."""
        if self._thread is None:
            return self._finish(self._draw(step))
        waiting = self._next
        batch = waiting[1].result() if waiting is not None and waiting[0] == step else self._drawn(step)
        self._next = step + 1, self._thread.submit(self._drawn, step + 1)
        return self._finish(batch)

    def _drawn(self, step: int) -> Batch:
        batch = self._draw(step)
        return tuple(tensor.pin_memory() for tensor in batch) if self._pin else batch

    def __exit__(self, *exception: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
