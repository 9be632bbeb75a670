"""The run command: from its options to a comparison on disk."""

import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from experiments.catalogue import make_console
from experiments.cli import EXIT_FAILED, RunCommand
from experiments.comparison import (
    add_changes,
    add_notes,
    check_directory,
    check_same_experiment,
    comparison_directory,
    differing_settings,
    failing_after_it_began,
    make_directory,
    new_comparison,
    only_one_run,
    refuse_if_differing,
)
from experiments.config import Config, check_range
from experiments.data import Corpus, load_corpus
from experiments.determinism import nondeterministic_operations
from experiments.launch import Failure, run_cells
from experiments.measurements import run_measurements
from experiments.models import (
    build_model,
    check_memory,
    check_parameters_match,
    count_parameters,
    resolve_device,
)
from experiments.presets import PRESETS
from experiments.progress import make_display
from experiments.record import (
    cell_config,
    cell_directory,
    cell_status,
    comparison_cells,
    remove_leftovers,
    write_json,
)
from experiments.registry import get
from experiments.report import read_comparison, remove_unfinished_reports, result_table, write_report
from experiments.tasks.language_model import ByteLanguageModel
from experiments.train import make_optimizer, training_step
from experiments.variants import VARIANTS, Variant, parse_variants
from experiments.worker import Cell, Job, log_path

MOST_SEEDS, MOST_WORKERS = 1000, 4096


def run(command: RunCommand, command_line: str) -> int:
    """Train what is missing of a comparison, measure it, write its report, print its table. Returns the exit status.

    Raises:
        ValueError: wrong use; nothing was written.
    """
    experiment = get(command.experiment)
    if not experiment.VARIANTS:
        return run_measurements(experiment, command, command_line)
    variants = parse_variants(",".join(experiment.VARIANTS) if command.variants is None else command.variants)
    seeds = PRESETS[command.preset]().seeds if command.seeds is None else command.seeds
    check_range("--seeds", seeds, 1, MOST_SEEDS)
    root = comparison_directory(command)
    check_directory(root)
    config = command.config
    device = resolve_device(command.device)
    workers = command.workers
    if workers is None:
        workers = 1 if device.type == "cuda" else max(1, _available_cores() // config.threads)
    check_range("--workers", workers, 1, MOST_WORKERS)
    if not command.cell_timeout > 0:
        raise ValueError(f"--cell-timeout is {command.cell_timeout}; give a positive number of seconds")
    if device.type == "cpu":
        check_memory(config, min(workers, seeds * len(variants)))
    parameters = {variant.name: _parameters(variant, config) for variant in variants}
    check_parameters_match(parameters)
    corpus = load_corpus(config.data, command.data_dir, command.data_file)
    task = ByteLanguageModel(corpus, config.context, config.batch_size)

    console = make_console()
    comparison = new_comparison(command, command_line, device) | {
        "config": dataclasses.asdict(config),
        "variants": [_describe(variant, config, parameters[variant.name]) for variant in variants],
        "seeds": list(range(seeds)),
        "data": [corpus.describe()],
        "evaluated_windows": {
            "validation": len(task.windows("validation", config.evaluation_windows)),
            "test": len(task.windows("test", config.test_windows)),
        },
    }
    if command.dry_run:
        _print_plan(console, comparison, variants, config, task, device, workers)
        return 0

    _merge_with_existing(root, comparison)  # what cannot be merged is refused before anything is written
    make_directory(root)
    with only_one_run(root, console):
        comparison = _merge_with_existing(root, comparison)  # again: another run may have ended in between
        with failing_after_it_began(root):
            return _run_comparison(console, root, comparison, command, task, device, workers)


def _run_comparison(
    console: Console,
    root: Path,
    comparison: dict[str, Any],
    command: RunCommand,
    task: ByteLanguageModel,
    device: torch.device,
    workers: int,
) -> int:
    remove_leftovers(root)
    remove_unfinished_reports(root)
    comparison["unrecorded"] = []
    write_json(root / "comparison.json", comparison)
    cells = [Cell(variant["name"], seed) for seed in comparison["seeds"] for variant in comparison["variants"]]
    config = Config(**comparison["config"])
    job = Job(root, config, command.data_dir, command.data_file, task.corpus.sha256, device.type)
    _print_head(console, comparison, task.corpus, device, workers)
    if device.type == "cuda":
        comparison["nondeterministic"] = _nondeterministic(comparison, config, task, device)
        write_json(root / "comparison.json", comparison)
    failures = _train(console, job, cells, workers, command.cell_timeout)
    comparison["unrecorded"] = [
        {"variant": cell.variant, "seed": cell.seed, "state": failure.ended.state, "reason": failure.reason}
        for cell, failure in failures.items()
        if not failure.recorded
    ]

    console.print("measuring the trained models and writing the report")
    add_notes(comparison, get(command.experiment).measure(root, comparison, task))
    write_json(root / "comparison.json", comparison)
    report = write_report(root)
    console.print(result_table(root))
    for cell, failure in failures.items():
        console.print(f"{failure.ended.state}: {cell}: {failure.reason}", markup=False, soft_wrap=True)
        console.print(f"  its log: {log_path(job, cell)}", markup=False, soft_wrap=True)
    if failures:
        console.print("the same command tries what failed again")
    console.print(f"report: {report}", soft_wrap=True)
    return EXIT_FAILED if failures else 0


def _available_cores() -> int:
    # Not every system can say which cores this process may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _train(console: Console, job: Job, cells: list[Cell], workers: int, cell_timeout: float) -> dict[Cell, Failure]:
    done = sum(cell_status(job.root, cell.variant, cell.seed)["state"] == "done" for cell in cells)
    if done:
        console.print(f"{done} of {len(cells)} cells are done already")
    with make_display(console, cells, done, job.config.steps) as display:
        return run_cells(job, cells, workers, display, cell_timeout)


def _parameters(variant: Variant, config: Config) -> tuple[int, int]:
    """As count_parameters; from models of one and two layers, because all layers have equally many."""
    with torch.device("meta"):
        one, two = (
            count_parameters(build_model(variant, dataclasses.replace(config, layers=layers), seed=0))
            for layers in (1, 2)
        )
    return one[0] + (config.layers - 1) * (two[0] - one[0]), one[1]


def _describe(variant: Variant, config: Config, parameters: tuple[int, int]) -> dict[str, Any]:
    total, position_table = parameters
    return {
        "name": variant.name,
        "description": _description(variant, config),
        "kernel": variant.kernel,
        "position": variant.position,
        "baseline": variant.baseline,
        "parameters": total,
        "position_parameters": position_table,
    }


def _description(variant: Variant, config: Config) -> str:
    if variant.position != "rope-after":
        return variant.description
    return f"{variant.description} The denominator is {config.denominator}."


def _merge_with_existing(root: Path, comparison: dict[str, Any]) -> dict[str, Any]:
    """The comparison to go on with in ``root``: the one there with the new variants and seeds added.

    Raises:
        ValueError: the one there has another experiment, configuration or data, so the two cannot be one.
    """
    path = root / "comparison.json"
    if not path.is_file():
        return comparison
    there = read_comparison(root)
    check_same_experiment(root, there, comparison)
    differing = differing_settings(there["config"], comparison["config"])
    contents = [record["data"][0]["sha256"][:12] for record in (there, comparison)]
    if contents[0] != contents[1]:
        differing.append("the content of the data set (sha256 {}... there, {}... now)".format(*contents))
    refuse_if_differing(root, differing)
    for cell in comparison_cells(there):
        # One that was copied from elsewhere, or edited.
        made_with = cell_config(root, *cell) or {"config": comparison["config"]}
        refuse_if_differing(cell_directory(root, *cell), differing_settings(made_with["config"], comparison["config"]))
    merged = dict(there)
    names = {variant["name"] for variant in there["variants"]}
    merged["variants"] = there["variants"] + [v for v in comparison["variants"] if v["name"] not in names]
    merged["seeds"] = sorted({*there["seeds"], *comparison["seeds"]})
    cells = comparison_cells(merged)
    add_changes(merged, comparison, all(cell_status(root, *cell)["state"] == "done" for cell in cells))
    return merged


def _print_head(
    console: Console, comparison: dict[str, Any], corpus: Corpus, device: torch.device, workers: int
) -> None:
    config = comparison["config"]
    tokens = config["steps"] * config["batch_size"] * config["context"]
    console.print(f"data: {corpus.name}, {corpus.source}. {corpus.note}", soft_wrap=True)
    console.print(
        f"{len(comparison['variants'])} variants x {len(comparison['seeds'])} seeds, {config['steps']:,} steps of "
        f"{config['batch_size'] * config['context']:,} tokens ({tokens:,} tokens a cell), {workers} at a time on "
        f"{comparison['machine']['device']}; linear attention: the chunked form in pure PyTorch, on "
        f"{device.type}",
        soft_wrap=True,
    )


def _print_plan(
    console: Console,
    comparison: dict[str, Any],
    variants: tuple[Variant, ...],
    config: Config,
    task: ByteLanguageModel,
    device: torch.device,
    workers: int,
) -> None:
    corpus = task.corpus
    _print_head(console, comparison, corpus, device, workers)
    console.print("measuring a training step of each variant (one layer, few sequences)")
    seeds = len(comparison["seeds"])
    table = Table("variant", "cells", "parameters", "position table", "tokens a cell", "estimated time a cell")
    total = 0.0
    for variant, described in zip(variants, comparison["variants"], strict=True):
        seconds = _estimated_seconds(variant, config, task, device)
        total += seconds * seeds
        table.add_row(
            variant.name,
            str(seeds),
            f"{described['parameters']:,}",
            f"{described['position_parameters']:,}",
            f"{config.steps * config.tokens_per_step:,}",
            _duration(seconds),
        )
    console.print(table)
    cells = seeds * len(variants)
    console.print(
        f"{cells} cells, {cells * config.steps * config.tokens_per_step:,} tokens; estimated time with {workers} at a "
        f"time: {_duration(total / min(workers, cells))}. No comparison was written."
    )


def _estimated_seconds(variant: Variant, config: Config, task: ByteLanguageModel, device: torch.device) -> float:
    """Seconds of a cell, from a few steps of a one-layer model on about a thousand tokens, evaluation included."""
    torch.set_num_threads(config.threads)
    trial, sequences = _trial_step(variant, config, task, device)
    times = []
    for step in range(3):
        begun = time.perf_counter()
        trial(step)
        times.append(time.perf_counter() - begun)
    per_sequence = statistics.median(times[1:]) * config.layers / sequences
    evaluations = config.steps // config.evaluate_every + 1
    # A forward pass is a third of a training step.
    evaluated = (evaluations * config.evaluation_windows + config.test_windows) / 3
    return per_sequence * (config.steps * config.batch_size + evaluated)


def _trial_step(
    variant: Variant, config: Config, task: ByteLanguageModel, device: torch.device
) -> tuple[Callable[[int], object], int]:
    """A training step of a one-layer model, to be called with its number, and the sequences it takes."""
    sequences = max(1, min(config.batch_size, 1024 // config.context))
    # A learning rate of almost nothing: the steps are a trial, and must not diverge.
    small = dataclasses.replace(config, layers=1, batch_size=sequences, learning_rate=1e-12)
    model = build_model(variant, small, seed=0).to(device)
    optimizer = make_optimizer(model, small)
    tokens = task.batch(0, 0)[:sequences].to(device)
    return lambda step: training_step(model, optimizer, tokens, small, step), sequences


def _nondeterministic(
    comparison: dict[str, Any], config: Config, task: ByteLanguageModel, device: torch.device
) -> list[str]:
    """The operations of the arms that give other bits when they are run again, by PyTorch's account."""
    trials = [_trial_step(VARIANTS[arm["name"]], config, task, device)[0] for arm in comparison["variants"]]
    return nondeterministic_operations(lambda: [trial(0) for trial in trials])


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"
