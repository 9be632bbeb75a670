"""Which share of the time a GPU computes while a run trains: the rest it waits, for Python say."""

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

BEGINS_AFTER = 30
"""steps from a run's start: compilers and memory have settled"""
STEPS = 10


class KernelShare:
    """Looks at the kernels of a few steps of a run, by PyTorch's profiler."""

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
