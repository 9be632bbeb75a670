"""What keeps a GPU busy while a run trains, and how busy it is."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from experiments.train.objectives import Batch

BEGINS_AFTER = 30
"""steps from a run's start: compilers and memory have settled"""
STEPS = 10


class Batches(AbstractContextManager["Batches"]):
    """The batches of steps: while a GPU computes one, a thread draws the next into memory that it copies from.

    On a CPU there is nothing to overlap with, and each is drawn when it is asked for.
    """

    def __init__(
        self,
        draw: Callable[[int], Batch],
        device: torch.device,
        finish: Callable[[Batch], Batch] = lambda drawn: drawn,
    ) -> None:
        """``finish`` makes the batch of what was drawn."""
        self._draw, self._pin, self._finish = draw, device.type == "cuda", finish
        self._thread = ThreadPoolExecutor(1) if device.type != "cpu" else None
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


class KernelShare:
    """Which share of the time a GPU computes in a few steps of a run, by PyTorch's profiler; the rest it waits."""

    def __init__(self, first_step: int) -> None:
        self._begins = first_step + BEGINS_AFTER
        self._profile: Any = None
        self._share: float | None = None

    def look(self, step: int) -> None:
        """To be called before every step."""
        if step == self._begins:
            self._profile = profile(activities=[ProfilerActivity.CUDA])
            torch.cuda.synchronize()
            self._profile.start()
            self._time = time.perf_counter()
        elif step == self._begins + STEPS:
            torch.cuda.synchronize()
            seconds = time.perf_counter() - self._time
            self._profile.stop()
            self._share = busy_seconds(self._profile.events(), DeviceType.CUDA) / seconds
            self._profile = None

    def metrics(self) -> dict[str, float]:
        """``kernel_share``, from 0 to 1; nothing if the run was too short, or the profiler saw no kernel."""
        return {"kernel_share": self._share} if self._share else {}


def busy_seconds(events: Iterable[Any], device: DeviceType) -> float:
    """The time in which at least one operation ran on a device, by a profiler's events; copies do not count."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type == device
        and not event.name.startswith(("Memcpy", "Memset"))
        and not getattr(event, "is_user_annotation", False)  # which spans the pauses between kernels
    )
    busy, reached = 0.0, float("-inf")
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy / 1e6
