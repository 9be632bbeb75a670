"""How calls are timed on a GPU: in turn, round by round, as the speed study does; on a CPU once, for a rehearsal."""

import statistics
from collections.abc import Mapping

import torch

from experiments.studies.speed import benchmark
from experiments.studies.speed.benchmark import Call

SAMPLE_SECONDS = 0.005
ROUNDS, FEWEST_ROUNDS = 15, 3
SECONDS = 1.0
"""after these no further round begins, but the fewest"""


def warm_up(call: Call, device: torch.device) -> int | None:
    """Call it until all is compiled; returns how far memory then rises in a call, in bytes, None on a CPU."""
    if device.type != "cuda":
        call()
        return None
    for _ in range(3):
        call()
    rise, _ = benchmark.peak_memory(call, device)
    return rise


def time_in_turn(calls: Mapping[str, Call], device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of a call of each, which are warm, a value for each round. RuntimeError: one of them raised."""
    rounds, fewest = (ROUNDS, FEWEST_ROUNDS) if device.type == "cuda" else (1, 1)
    seconds, failures = benchmark.time_in_turn(
        calls,
        threads=torch.get_num_threads(),
        sample_seconds=SAMPLE_SECONDS,
        rounds=rounds,
        fewest_rounds=fewest,
        budget=SECONDS,
    )
    if failures:
        raise RuntimeError("; ".join(f"{name}: {reason}" for name, reason in failures.items()))
    return {name: [1e3 * value for value in values] for name, values in seconds.items()}


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


def ratios(times: Mapping[str, list[float]], ours: str) -> dict[str, float]:
    """How many times as fast ``ours`` is as each other: the median over rounds of what is compared within each."""
    return {
        name: statistics.median(other / own for other, own in zip(values, times[ours], strict=True))
        for name, values in times.items()
        if ours in times and name != ours
    }
