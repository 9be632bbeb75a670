"""How calls are timed on a GPU: in turn, round by round, as the speed study does; on a CPU once, for a rehearsal."""

from collections.abc import Mapping
from statistics import median
from typing import Any

import torch

from experiments.gpu.step import Step
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


def compare(step: Step, case: dict[str, Any], calls: Mapping[str, Call], ours: str, **others: Any) -> None:
    """Times calls that are warm, and puts down milliseconds, and how many times as fast as each other ours is: the
    median over rounds of what is compared within each.
    """
    calls = {name: call for name, call in calls.items() if not step.has_failed(case, name)}
    if step.only_compiles or not calls:
        return
    times = step.attempt(case, "all in turn", lambda: time_in_turn(calls, step.device))
    if times is None:
        return
    ms = {name: median(values) for name, values in times.items()}
    speedup = {
        name: median(other / own for other, own in zip(values, times[ours], strict=True))
        for name, values in times.items()
        if ours in times and name != ours
    }
    step.write(case=case, ms=ms, rounds=len(next(iter(times.values()))), speedup=speedup, **others)
