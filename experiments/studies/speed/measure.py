"""The measurements of the speed study: which there are, and how each is made and put on record."""

import contextlib
import gc
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from experiments.console import make_console
from experiments.records.schema import Comparison
from experiments.studies.speed import benchmark, records
from experiments.studies.speed.cases import build, competitors, left_out
from experiments.studies.speed.records import Measurement, read_records
from experiments.studies.speed.study import (
    AFTER,
    BUSY,
    CHUNKED,
    COPY,
    DECODING,
    DIRECTIONS,
    OURS,
    SGEMM,
    SOFTMAX,
    SpeedConfig,
)
from linear_rope.ops.linear.chunked import CHUNK_SIZE


def planned(config: SpeedConfig) -> Iterator[Measurement]:
    """Every measurement of a complete run, empty, what it says most about first."""
    limits = [SGEMM, COPY] if config.device == "cuda" else [SGEMM]
    lengths = {**dict.fromkeys(("operation", "mapped", "module"), config.lengths), "training": config.training_lengths}
    groups: dict[str, Any] = {"rate": {None: [(name, config.gemm_size) for name in limits]}}
    groups["rate"][None] += [(OURS, n) for n in config.lengths]
    for topic in (DECODING, BUSY):
        groups[topic] = {None: [(name, n) for n in config.contexts for name in competitors(topic, n, config)]}
    for topic, measured in (lengths | dict.fromkeys(("positions", "decays"), config.position_lengths)).items():
        groups[topic] = {n: [(name, n) for name in competitors(topic, n, config)] for n in measured}
    longest = max(config.lengths)
    for topic in filter(config.measures, groups):
        for length, cases in groups[topic].items():
            for direction in DIRECTIONS[topic]:
                place: Any = {"topic": topic, "direction": direction, "length": length, "chunk_size": CHUNK_SIZE}
                yield Measurement(kind="time", cases=tuple(cases), **place)
            if topic in ("operation", "module", "training") and length in (config.memory_lengths or lengths[topic]):
                yield from (memory_of(topic, *case) for case in cases)
        if topic == "training" and longest not in config.training_lengths:
            yield from (memory_of(topic, name, longest) for name in (AFTER, AFTER + CHUNKED, SOFTMAX))


def memory_of(topic: str, name: str, length: int) -> Measurement:
    """That of a competitor's memory, empty."""
    cases, direction = ((name, length),), DIRECTIONS[topic][-1]
    return Measurement(kind="memory", topic=topic, direction=direction, length=length, cases=cases, case=name)


def missing(root: Path, config: SpeedConfig) -> list[Measurement]:
    """What is planned and not on record, or on record with a failure."""
    done = {record.plan for record in read_records(root) if not record.failures}
    return [each for each in planned(config) if each.plan not in done]


def notes(root: Path, config: SpeedConfig) -> list[str]:
    """What a run with these settings does not measure, and what failed when it was last tried; a sentence each."""
    tried = {record.plan: record.sentences for record in read_records(root)}
    failed = [sentence for each in planned(config) for sentence in tried.get(each.plan, [])]
    return left_out(config) + [f"failed: {sentence}" for sentence in failed]


def measure(root: Path, comparison: Comparison, objective: object) -> list[str]:
    """Make every missing measurement; returns a sentence for each that failed."""
    config = records.read_config(comparison)
    console, run, failures = make_console(), uuid.uuid4().hex[:12], list[str]()
    todo = missing(root, config)
    for index, each in enumerate(todo, start=1):
        console.print(f"{index} of {len(todo)}: {each}", soft_wrap=True)
        results, reasons = (_times if each.kind == "time" else _memory)(each, config)
        failed = [records.Failure(name, length, why) for (name, length), why in reasons.items()]
        record = replace(each, run=run, failures=failed, **results)
        failures += record.sentences
        records.append_record(root, record)
    return failures


Found = tuple[dict[str, Any], dict[tuple[str, int], str]]
"""fields of a measurement, and why the cases that are not there failed"""


def _times(plan: Measurement, config: SpeedConfig) -> Found:
    gc.collect()
    calls, failures = {}, {}
    for name, length in plan.cases:
        try:
            calls[name, length] = build(plan.topic, plan.direction, name, length, config)
        except Exception as error:
            failures[name, length] = benchmark.reason(error)
    many_rounds = plan.topic in ("positions", "decays", DECODING, BUSY)
    with benchmark.busy_process() if plan.topic == BUSY else contextlib.nullcontext():
        seconds, failed = benchmark.time_in_turn(
            {key: call.run for key, call in calls.items()},
            threads=config.threads,
            sample_seconds=config.sample_seconds,
            rounds=config.position_rounds if many_rounds else config.rounds,
            fewest_rounds=config.fewest_rounds,
            budget=config.position_seconds if many_rounds else config.group_seconds,
        )
    samples = [records.Sample(*key, values, **calls[key].facts) for key, values in seconds.items()]
    return {"samples": samples}, failures | failed


def _memory(plan: Measurement, config: SpeedConfig) -> Found:
    try:
        return benchmark.in_fresh_process(memory_here, plan, config), {}
    except Exception as error:
        return {}, {plan.cases[0]: str(error)}


def memory_here(plan: Measurement, config: SpeedConfig) -> dict[str, Any]:
    """The peak memory of a competitor; for a process of its own."""
    torch.set_num_threads(config.threads)
    name = plan.case
    if plan.topic == "training" and name.endswith(CHUNKED):
        os.environ["LINEAR_ROPE_NATIVE"], name = "0", name.removesuffix(CHUNKED)
    benchmark.keep_no_freed_memory()
    # A call at a tiny length warms the process up.
    build(plan.topic, plan.direction, name, min(16, plan.length or 16), config).run()
    call = build(plan.topic, plan.direction, name, plan.length or 16, config)
    rise, method = benchmark.peak_memory(call.run, torch.device(config.device))
    return {"rise": rise, "returned": call.returned_bytes, "method": method}
