"""What does linear attention with RoPE cost, beside softmax attention and the other implementations?

python -m experiments run speed
"""

import dataclasses
import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.benchmark import in_fresh_process, time_in_turn
from experiments.catalogue import make_console
from experiments.record import read_metrics
from experiments.speed_cases import (
    BACKWARD,
    FORWARD,
    OURS,
    SGEMM,
    STEP,
    TOKEN,
    SpeedConfig,
    build,
    competitors,
    left_out,
    memory_here,
    settings,
)
from experiments.speed_report import figures
from experiments.speed_results import RECORDS, read_config
from linear_rope.functional.chunked import CHUNK_SIZE

__all__ = ["QUESTION", "VARIANTS", "figures", "left_out", "measure", "missing", "settings"]

QUESTION = (
    "What does linear attention with RoPE cost in time and memory, and from which length on does it pay? The causal "
    "operation alone, the attention module, a training step and the decoding of a token, each beside softmax attention "
    "and beside performer-pytorch, and the share of the machine's matrix-product rate that the operation reaches."
)

VARIANTS = ()
"""nothing is trained"""


class Measurement(NamedTuple):
    """What is measured at once, and lost at most if the run is killed.

    Attributes:
        kind: "time" or "memory".
        topic, direction: as in speed_cases.py; "rate" is our operation at all lengths beside a matrix product.
        length: None where several lengths are timed in the same rounds.
        cases: (competitor, length) of all that is measured.
    """

    kind: str
    topic: str
    direction: str
    length: int | None
    cases: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        names = ", ".join(dict.fromkeys(name for name, _ in self.cases))
        lengths = ", ".join(f"{n:,}" for n in dict.fromkeys(n for name, n in self.cases if name != SGEMM))
        return f"{self.kind} of {self.topic}, {self.direction}, N = {lengths}: {names}"


def planned(config: SpeedConfig) -> Iterator[Measurement]:
    """Every measurement of a complete run, what it says most about first."""
    for direction in (FORWARD, BACKWARD):
        cases = [(SGEMM, config.gemm_size), *((OURS, length) for length in config.lengths)]
        yield Measurement("time", "rate", direction, None, tuple(cases))
    cases = [(name, n) for n in config.contexts for name in competitors("decoding", TOKEN, n, config)]
    yield Measurement("time", "decoding", TOKEN, None, tuple(cases))
    for topic, directions, lengths in (
        ("operation", (FORWARD, BACKWARD), config.lengths),
        ("module", (FORWARD, BACKWARD), config.lengths),
        ("training", (STEP,), config.training_lengths),
    ):
        for length in lengths:
            names = competitors(topic, directions[-1], length, config)
            for direction in directions:
                yield Measurement("time", topic, direction, length, tuple((name, length) for name in names))
            for name in names:
                yield Measurement("memory", topic, directions[-1], length, ((name, length),))


def missing(root: Path, config: SpeedConfig) -> list[Measurement]:
    """What is planned and not on record."""
    done = {
        Measurement(
            row["kind"], row["topic"], row["direction"], row["length"], tuple((name, n) for name, n in row["cases"])
        )
        for row in read_metrics(root / RECORDS)
    }
    return [measurement for measurement in planned(config) if measurement not in done]


def measure(root: Path, comparison: dict[str, Any], task: object) -> list[str]:
    """Make every missing measurement; returns a sentence for each that failed."""
    config = read_config(comparison)
    console = make_console()
    failures = []
    todo = missing(root, config)
    for index, measurement in enumerate(todo, start=1):
        console.print(f"{index} of {len(todo)}: {measurement}", soft_wrap=True)
        take = _time if measurement.kind == "time" else _memory
        try:
            result = take(measurement, config)
        except (RuntimeError, ValueError, NotImplementedError) as error:  # what PyTorch and its extensions raise
            failures.append(f"{measurement}: {type(error).__name__}: {error}")
            continue
        _append(root / RECORDS, measurement._asdict() | result)
    return failures


def _time(measurement: Measurement, config: SpeedConfig) -> dict[str, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        calls = {
            (name, length): build(measurement.topic, measurement.direction, name, length, config)
            for name, length in measurement.cases
        }
        seconds = time_in_turn(
            {key: call.run for key, call in calls.items()},
            threads=config.threads,
            sample_seconds=config.sample_seconds,
            rounds=config.rounds,
            fewest_rounds=config.fewest_rounds,
            budget=config.group_seconds,
        )
        samples = [
            {"case": name, "length": length, "seconds": seconds[name, length]} | calls[name, length].facts
            for name, length in measurement.cases
        ]
    finally:
        torch.set_num_threads(threads)
        gc.collect()
    return {"samples": samples, "chunk_size": CHUNK_SIZE}


def _memory(measurement: Measurement, config: SpeedConfig) -> dict[str, Any]:
    ((name, length),) = measurement.cases
    arguments = (measurement.topic, measurement.direction, name, length, dataclasses.asdict(config))
    return {"case": name} | in_fresh_process(memory_here, *arguments)


def _append(path: Path, row: dict[str, Any]) -> None:
    """Add a line, on the disk before this returns; what a killed run left of a line is cut off first."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)
    with open(path, "ab") as file:
        file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
