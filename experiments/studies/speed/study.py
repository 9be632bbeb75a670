"""What does linear attention with RoPE cost, beside softmax attention and the other implementations?

python -m experiments run speed
"""

import dataclasses
import gc
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.commands.catalogue import make_console
from experiments.records.schema import Comparison
from experiments.studies.speed.benchmark import in_fresh_process, reason, time_in_turn
from experiments.studies.speed.cases import build, competitors, left_out, memory_here
from experiments.studies.speed.claims import CLAIMS
from experiments.studies.speed.records import RECORDS, Record, read_config, read_records
from experiments.studies.speed.report import figures
from experiments.studies.speed.settings import BACKWARD, FORWARD, OURS, SGEMM, STEP, TOKEN, SpeedConfig, settings
from linear_rope.functional.chunked import CHUNK_SIZE

__all__ = [
    "CLAIMS",
    "METHOD",
    "NOT_SHOWN",
    "QUESTION",
    "VARIANTS",
    "figures",
    "measure",
    "missing",
    "notes",
    "settings",
]

QUESTION = "What does linear attention with RoPE cost in time and memory, and from which length on does it pay?"

METHOD = (
    "The causal operation alone, the attention module, a training step and the decoding of a token are measured, each "
    "beside softmax attention and beside performer-pytorch; a training step with each position encoding beside one of "
    "the same kernel without; and the share of the machine's matrix-product rate that the operation reaches. Each "
    "round times every competitor of the same length once, in turn, and ratios are taken within a round; memory is "
    "measured in a process of its own."
)

NOT_SHOWN = (
    "Other machines, numbers of threads, widths, batches and kinds of numbers than those named below, where other "
    "competitors may win. How good a model is that is trained or decoded at this cost. Medians of a few rounds on one "
    "virtual machine tell little about differences of a few percent."
)

VARIANTS = ()
"""nothing is trained"""


class Measurement(NamedTuple):
    """What is measured at once, and lost at most if the run is killed.

    Attributes:
        kind: "time" or "memory".
        topic, direction: as in schema.DIRECTIONS; "rate" is our operation at all lengths beside a matrix product.
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
    cases = [(name, n) for n in config.contexts for name in competitors("decoding", n, config)]
    yield Measurement("time", "decoding", TOKEN, None, tuple(cases))
    for topic, directions, lengths in (
        ("operation", (FORWARD, BACKWARD), config.lengths),
        ("module", (FORWARD, BACKWARD), config.lengths),
        ("training", (STEP,), config.training_lengths),
    ):
        for length in lengths:
            names = competitors(topic, length, config)
            for direction in directions:
                yield Measurement("time", topic, direction, length, tuple((name, length) for name in names))
            if config.memory_lengths is None or length in config.memory_lengths:
                for name in names:
                    yield Measurement("memory", topic, directions[-1], length, ((name, length),))
    for length in config.position_lengths:
        names = competitors("positions", length, config)
        yield Measurement("time", "positions", STEP, length, tuple((name, length) for name in names))


def missing(root: Path, config: SpeedConfig) -> list[Measurement]:
    """What is planned and not on record, or on record with a failure."""
    done = {_measurement(row) for row in read_records(root) if not row.get("failures")}
    return [measurement for measurement in planned(config) if measurement not in done]


def notes(root: Path, config: SpeedConfig) -> list[str]:
    """What a run with these settings does not measure, and what failed when it was last tried; a sentence each."""
    tried = {_measurement(row): row for row in read_records(root)}
    failed = [
        sentence
        for measurement in planned(config)
        if measurement in tried
        for sentence in _failures(measurement, tried[measurement])
    ]
    return left_out(config) + [f"failed: {sentence}" for sentence in failed]


def measure(root: Path, comparison: Comparison, objective: object) -> list[str]:
    """Make every missing measurement; returns a sentence for each that failed."""
    config = read_config(comparison)
    console = make_console()
    run = uuid.uuid4().hex[:12]
    failures = []
    todo = missing(root, config)
    for index, measurement in enumerate(todo, start=1):
        console.print(f"{index} of {len(todo)}: {measurement}", soft_wrap=True)
        result = (_time if measurement.kind == "time" else _memory)(measurement, config)
        failures += _failures(measurement, result)
        _append(root / RECORDS, measurement._asdict() | {"run": run} | result)
    return failures


def _measurement(row: Record) -> Measurement:
    cases = tuple((name, length) for name, length in row["cases"])
    return Measurement(row["kind"], row["topic"], row["direction"], row["length"], cases)


def _failures(measurement: Measurement, row: Record) -> list[str]:
    what = f"{measurement.kind} of {measurement.topic}, {measurement.direction}"
    return [f"{what}, N = {each['length']:,}: {each['case']}: {each['reason']}" for each in row.get("failures", [])]


def _time(measurement: Measurement, config: SpeedConfig) -> Record:
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    calls, failures = {}, {}
    is_positions = measurement.topic == "positions"
    try:
        for name, length in measurement.cases:
            try:
                calls[name, length] = build(measurement.topic, measurement.direction, name, length, config)
            except Exception as error:
                failures[name, length] = reason(error)
        seconds, failed = time_in_turn(
            {key: call.run for key, call in calls.items()},
            threads=config.threads,
            sample_seconds=config.sample_seconds,
            rounds=config.position_rounds if is_positions else config.rounds,
            fewest_rounds=config.fewest_rounds,
            budget=config.position_seconds if is_positions else config.group_seconds,
        )
    finally:
        torch.set_num_threads(threads)
        gc.collect()
    samples = [
        {"case": name, "length": length, "seconds": values} | calls[name, length].facts
        for (name, length), values in seconds.items()
    ]
    return {"samples": samples, "chunk_size": CHUNK_SIZE} | _failed(failures | failed)


def _memory(measurement: Measurement, config: SpeedConfig) -> Record:
    ((name, length),) = measurement.cases
    arguments = (measurement.topic, measurement.direction, name, length, dataclasses.asdict(config))
    try:
        return {"case": name} | in_fresh_process(memory_here, *arguments)
    except Exception as error:
        return {"case": name} | _failed({(name, length): str(error)})


def _failed(reasons: dict[tuple[str, int], str]) -> Record:
    """The part of a record that says what failed; nothing if all went well."""
    failures = [{"case": name, "length": length, "reason": why} for (name, length), why in reasons.items()]
    return {"failures": failures} if failures else {}


def _append(path: Path, row: dict[str, Any]) -> None:
    """Add a line, on the disk before this returns; what a killed run left of a line is cut off first."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)
    with open(path, "ab") as file:
        file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
