"""How calls are timed on a GPU: in turn, round by round, with events; on a CPU by the clock, for a rehearsal."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch

SAMPLE_MS = 5.0
"""a sample repeats a short call for about so long"""
MOST_CALLS = 50
ROUNDS, FEWEST_ROUNDS = 15, 3
SECONDS = 1.0
"""after these no further round begins, but the fewest"""

Call = Callable[[], object]


def warm_up(call: Call, device: torch.device) -> int | None:
    """Call it until all is compiled; returns how far memory then rises in a call, in bytes, None on a CPU."""
    for _ in range(3 if device.type == "cuda" else 1):
        call()
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def time_in_turn(calls: Mapping[str, Call], device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of a call of each, which are warm, a value for each round."""
    if device.type != "cuda":
        return {name: [_sample(call, 1, device)] for name, call in calls.items()}
    repeats = {name: min(MOST_CALLS, 1 + int(SAMPLE_MS / _sample(call, 1, device))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    begun = time.monotonic()
    for index in range(ROUNDS):
        if index >= FEWEST_ROUNDS and time.monotonic() - begun > SECONDS:
            break
        for name, call in calls.items():
            times[name].append(_sample(call, repeats[name], device))
    return times


def _sample(call: Call, repeats: int, device: torch.device) -> float:
    """Milliseconds of a call, of so many one after the other."""
    if device.type != "cuda":
        begun = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - begun) * 1e3 / repeats
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / repeats


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


def ratios(times: Mapping[str, list[float]], ours: str) -> dict[str, float]:
    """How many times as fast ``ours`` is as each other: the median over rounds of what is compared within each."""
    return {
        name: statistics.median(other / own for other, own in zip(values, times[ours], strict=True))
        for name, values in times.items()
        if ours in times and name != ours
    }
