"""The measurements of the speed study: which there are, and how each is made and put on record."""

import dataclasses
import gc
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from experiments.console import make_console
from experiments.records.schema import Comparison
from experiments.studies.speed.benchmark import (
    in_fresh_process,
    keep_no_freed_memory,
    peak_memory,
    reason,
    time_in_turn,
)
from experiments.studies.speed.cases import build, competitors, left_out
from experiments.studies.speed.records import (
    Failure,
    Measurement,
    MemoryMeasurement,
    Plan,
    Sample,
    TimeMeasurement,
    append_record,
    read_config,
    read_records,
)
from experiments.studies.speed.study import DIRECTIONS, OURS, SGEMM, STEP, TOKEN, SpeedConfig
from linear_rope.functional.chunked import CHUNK_SIZE

WARM_UP = 16
"""tokens of the call that warms a process up before its memory is measured"""


def planned(config: SpeedConfig) -> Iterator[Plan]:
    """Every measurement of a complete run, what it says most about first."""
    for direction in DIRECTIONS["rate"]:
        cases = [(SGEMM, config.gemm_size), *((OURS, length) for length in config.lengths)]
        yield Plan("time", "rate", direction, None, tuple(cases))
    cases = [(name, n) for n in config.contexts for name in competitors("decoding", n, config)]
    yield Plan("time", "decoding", TOKEN, None, tuple(cases))
    for topic in ("operation", "module", "training"):
        for length in config.training_lengths if topic == "training" else config.lengths:
            names = competitors(topic, length, config)
            for direction in DIRECTIONS[topic]:
                yield Plan("time", topic, direction, length, tuple((name, length) for name in names))
            if config.memory_lengths is None or length in config.memory_lengths:
                for name in names:
                    yield Plan("memory", topic, DIRECTIONS[topic][-1], length, ((name, length),))
    for length in config.position_lengths:
        names = competitors("positions", length, config)
        yield Plan("time", "positions", STEP, length, tuple((name, length) for name in names))


def missing(root: Path, config: SpeedConfig) -> list[Plan]:
    """What is planned and not on record, or on record with a failure."""
    done = {record.plan for record in read_records(root) if not record.failures}
    return [plan for plan in planned(config) if plan not in done]


def notes(root: Path, config: SpeedConfig) -> list[str]:
    """What a run with these settings does not measure, and what failed when it was last tried; a sentence each."""
    tried = {record.plan: record.sentences for record in read_records(root)}
    failed = [sentence for plan in planned(config) for sentence in tried.get(plan, [])]
    return left_out(config) + [f"failed: {sentence}" for sentence in failed]


def measure(root: Path, comparison: Comparison, objective: object) -> list[str]:
    """Make every missing measurement; returns a sentence for each that failed."""
    config = read_config(comparison)
    console = make_console()
    run = uuid.uuid4().hex[:12]
    failures = []
    todo = missing(root, config)
    for index, plan in enumerate(todo, start=1):
        console.print(f"{index} of {len(todo)}: {plan}", soft_wrap=True)
        record = (_time if plan.kind == "time" else _memory)(plan, config, run)
        failures += record.sentences
        append_record(root, record)
    return failures


def _time(plan: Plan, config: SpeedConfig, run: str) -> Measurement:
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    calls, failures = {}, {}
    is_positions = plan.topic == "positions"
    try:
        for name, length in plan.cases:
            try:
                calls[name, length] = build(plan.topic, plan.direction, name, length, config)
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
    samples = [Sample(*key, values, **calls[key].facts) for key, values in seconds.items()]
    return TimeMeasurement(**_common(plan, run, failures | failed), samples=samples, chunk_size=CHUNK_SIZE)


def _memory(plan: Plan, config: SpeedConfig, run: str) -> Measurement:
    ((name, length),) = plan.cases
    try:
        found = in_fresh_process(memory_here, plan.topic, plan.direction, name, length, dataclasses.asdict(config))
    except Exception as error:
        return MemoryMeasurement(**_common(plan, run, {(name, length): str(error)}), case=name)
    return MemoryMeasurement(**_common(plan, run, {}), case=name, **found)


def _common(plan: Plan, run: str, reasons: dict[tuple[str, int], str]) -> dict[str, Any]:
    """What both kinds of measurement say."""
    what = {name: value for name, value in plan._asdict().items() if name != "kind"}
    return what | {"run": run, "failures": [Failure(*case, why) for case, why in reasons.items()]}


def memory_here(topic: str, direction: str, name: str, length: int, config: dict[str, Any]) -> dict[str, Any]:
    """The peak memory of a competitor; for a process of its own."""
    settings = SpeedConfig(**config)
    torch.set_num_threads(settings.threads)
    keep_no_freed_memory()
    build(topic, direction, name, min(WARM_UP, length), settings).run()
    call = build(topic, direction, name, length, settings)
    rise, method = peak_memory(call.run, torch.device(settings.device))
    return {"rise": rise, "returned": call.returned_bytes, "method": method}
